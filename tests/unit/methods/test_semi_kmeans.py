"""Semi-supervised k-means on frozen features as a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import semi_supervised_kmeans
from ctxgcd.methods.build import method_of
from ctxgcd.methods.semi_kmeans import SemiKMeans
from ctxgcd.training import train
from tests.helpers.params import values

CLASSES, OLD, DIM, LABELLED, FREE, TEST = 4, 2, 6, 20, 40, 10


def features(of: NDArray[np.int64], noise: float = 0.3) -> NDArray[np.float32]:
    """Frozen features [n, DIM] around the centre of each image's class, of any length."""
    stream = np.random.RandomState(len(of))
    points = np.eye(DIM)[of] + noise * stream.randn(len(of), DIM)
    return (points * stream.uniform(1, 5, (len(of), 1))).astype("float32")


LABELS = np.arange(LABELLED) % OLD
OF_FREE, OF_TEST = np.arange(FREE) % CLASSES, np.arange(TEST) % CLASSES


def method(**changes: object) -> SemiKMeans:
    return SemiKMeans(values("semi_kmeans", K=CLASSES, seed=3, **changes))


def test_the_row_is_semi_supervised_kmeans_of_normalised_features() -> None:
    labelled, free, test = features(LABELS), features(OF_FREE), features(OF_TEST)
    clusters, of_test, centres = method(restarts=2, iterations=7).cluster(free, test, labelled, LABELS)
    rows = normalize(torch.from_numpy(np.concatenate([labelled, free])), dim=1)
    labels = torch.from_numpy(np.concatenate([LABELS, np.full(FREE, -1)]))
    assigned, expected = semi_supervised_kmeans(rows, labels, CLASSES, restarts=2, iterations=7, seed=3)
    assert clusters.tolist() == assigned[LABELLED:].tolist()
    np.testing.assert_array_equal(centres, expected.numpy())
    assert centres.shape == (CLASSES, DIM)
    distances = torch.cdist(normalize(torch.from_numpy(test), dim=1), expected)
    assert of_test.tolist() == distances.argmin(dim=1).tolist()
    assert method().cluster(free, test[:0], labelled, LABELS)[1].shape == (0,)


def test_labelled_images_decide_the_old_clusters() -> None:
    """Images of old classes get the class of the labelled ones, for any numbering."""
    labelled, free, test = features(LABELS, 0.05), features(OF_FREE, 0.05), features(OF_TEST, 0.05)
    for labels in (LABELS, 1 - LABELS):
        names = np.array([labels[0], labels[1]])  # of the first two classes
        clusters, of_test, _ = method().cluster(free, test, labelled, labels)
        for found, truth in ((clusters, OF_FREE), (of_test, OF_TEST)):
            np.testing.assert_array_equal(found[truth < OLD], names[truth[truth < OLD]])
            assert sorted(set(found[truth >= OLD])) == [2, 3]
            assert all(len(set(found[truth == kind])) == 1 for kind in (2, 3))


@pytest.fixture
def split() -> pd.DataFrame:
    """The images above in the columns of a split: labelled, unlabelled, test."""
    role = ["labelled"] * LABELLED + ["unlabelled"] * FREE + ["test"] * TEST
    ids = np.arange(len(role))
    class_id = np.concatenate([LABELS, OF_FREE, OF_TEST])
    part = np.where(np.array(role) == "test", "test", "train")
    old = (class_id < OLD).astype(int)
    return pd.DataFrame({"id": ids, "class_id": class_id, "role": role, "part": part, "old": old, "path": "a"})


def test_no_label_of_an_unlabelled_image_is_read(tmp_path: Path, split: pd.DataFrame) -> None:
    """A whole run assigns the same classes when the split names other classes for D^u and the test part."""
    np.save(tmp_path / "test_view.npy", np.concatenate([features(LABELS), features(OF_FREE), features(OF_TEST)]))
    other = split.copy()
    other.loc[other.role != "labelled", "class_id"] = np.random.RandomState(0).randint(0, CLASSES, FREE + TEST)
    p = values("semi_kmeans", K=CLASSES, benchmark="mine", row="semi_kmeans", threads=1)
    made = []
    for name, of in (("as it is", split), ("other", other)):
        train.run(
            p,
            method=method_of(p),
            split=of.sample(frac=1, random_state=1),
            files={"test_view": tmp_path / "test_view.npy"},
            state=tmp_path / name,
            device=torch.device("cpu"),
            about={"identity": "0123456789abcdef", "split_sha256": "a", "code": "b"},
        )
        made.append((tmp_path / name / "finished/assignments.csv").read_text())
    assert made[0] == made[1]
    clusters, of_test, _ = SemiKMeans(p).cluster(features(OF_FREE), features(OF_TEST), features(LABELS), LABELS)
    found = pd.read_csv(tmp_path / "other/finished/assignments.csv").set_index("id")["predicted"]
    assert found[list(range(LABELLED, LABELLED + FREE))].tolist() == clusters.tolist()
    assert found[list(range(LABELLED + FREE, LABELLED + FREE + TEST))].tolist() == of_test.tolist()
