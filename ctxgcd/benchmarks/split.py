"""The split into labelled and unlabelled training images, bit for bit as in the code of GCD and SimGCD."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from ctxgcd.benchmarks.class_lists import ClassList
from ctxgcd.benchmarks.split_file import DTYPES, SPLIT_COLUMNS
from ctxgcd.errors import UserError
from ctxgcd.names import ROLES


def make_split(
    manifest: pd.DataFrame,
    class_list: ClassList,
    *,
    seed: int,
    labelled_share: float,
    drawn_order: bool,
    labelled_paths: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return the split (SPLIT_COLUMNS): rows of D^l, then D^u, then the test part.

    D^l contains the images of `labelled_paths` if given, else the positions
    RandomState(seed).permutation(n)[:int(labelled_share * n)] among the n training images of Old classes in
    canonical order, not stratified. The column class_id contains raw ids in the manifest and dense labels in the
    split: positions in old + new. Images of other classes are dropped before labels are assigned, so a benchmark with
    few classes is the same when read from a full folder.
    """
    if not 0 < labelled_share < 1:
        raise UserError(f"labelled_share is {labelled_share}, but expected a number between 0 and 1; change it")
    listed = class_list.old + class_list.new
    _check(manifest, class_list)
    kept = class_list.used(manifest)
    kept = pd.concat([kept[kept["part"] == part] for part in ("train", "test")], ignore_index=True)
    label_of = {raw: label for label, raw in enumerate(listed)}
    labels = kept["class_id"].map(label_of).to_numpy("int64")
    is_old = labels < len(class_list.old)
    is_train = (kept["part"] == "train").to_numpy()

    candidates = np.flatnonzero(is_train & is_old)
    if labelled_paths is None:
        drawn = np.random.RandomState(seed).permutation(len(candidates))[: int(labelled_share * len(candidates))]
    else:
        drawn = np.flatnonzero(kept["path"].iloc[candidates].isin(labelled_paths))
    if not drawn.size:
        raise UserError(
            f"labelled_share {labelled_share} of {len(candidates)} training images of Old classes gives no labelled "
            "image; increase labelled_share or add images"
        )
    labelled = candidates[drawn if drawn_order else np.sort(drawn)]
    is_unlabelled = is_train.copy()
    is_unlabelled[labelled] = False
    groups = [labelled, np.flatnonzero(is_unlabelled), np.flatnonzero(~is_train)]
    order, roles = np.concatenate(groups), np.repeat(ROLES, [len(group) for group in groups])

    split = kept.assign(id=np.arange(len(kept)), class_id=labels, old=is_old.astype("int64")).iloc[order]
    return split.assign(role=roles)[list(SPLIT_COLUMNS)].astype(DTYPES).reset_index(drop=True)


def _check(manifest: pd.DataFrame, class_list: ClassList) -> None:
    """Raise UserError if the manifest and the class list do not match."""
    listed = class_list.old + class_list.new
    if len(manifest) and manifest["class_id"].max() >= class_list.classes:
        raise UserError(
            f"the data has class {manifest['class_id'].max()}, but class list {class_list.name!r} has the classes "
            f"0..{class_list.classes - 1}; choose the list of this benchmark"
        )
    train = manifest[manifest["part"] == "train"]
    found = train.drop_duplicates("class_id").set_index("class_id")["class_name"].to_dict()
    if absent := [raw for raw in listed if raw not in found]:
        raise UserError(
            f"{len(absent)} classes of list {class_list.name!r} have no training image, first raw class "
            f"{absent[0]}; complete the data"
        )
    for raw, name in zip(listed, class_list.names, strict=False):  # a list without names is not compared
        if found[raw] != name:
            raise UserError(
                f"raw class {raw} of the data is {found[raw]!r}, but class list {class_list.name!r} expects "
                f"{name!r}; restore the official folders"
            )


def trial_split(split: pd.DataFrame, *, seed: int, labelled_share: float) -> pd.DataFrame:
    """Return a split of the labelled data of `split`, used to choose settings without the labels of D^u.

    The first half (rounded up) of the Old classes stays Old, the others become New, and D^l is drawn again in
    canonical order. The split has no test rows and new ids.
    """
    labelled = split[split["role"] == "labelled"].sort_values("id", ignore_index=True)
    classes = tuple(int(raw) for raw in np.unique(labelled["class_id"]))
    half = (len(classes) + 1) // 2
    source = "the labelled classes of a split"
    class_list = ClassList("trial", source, max(classes, default=0) + 1, classes[:half], classes[half:])
    return make_split(labelled, class_list, seed=seed, labelled_share=labelled_share, drawn_order=False)
