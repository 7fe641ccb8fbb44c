"""Discovering the classes of people's own images: what is written, resumed, predicted, exported and refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import yaml
from PIL import Image

from ctxgcd import api
from ctxgcd.benchmarks.readers.own_images import images_below
from ctxgcd.cli.command import main, parser
from ctxgcd.config import Params
from ctxgcd.discover import export, model
from ctxgcd.discover.discovery import _names
from ctxgcd.discover.presets import chosen, estimate_of, fitted, read_presets
from ctxgcd.discover.split import read_labels
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256
from tests.fixtures import Painter

ROOT = Path(__file__).resolve().parents[2]
MODEL, SIZE = "test_efficientnet", 32  # a hundredth of the smallest real one
ODD = 'rose, "wild" <b>&\nred'  # a class's name
PER_CLASS, LABELLED = 12, 5
KNOWN = ("iris", ODD)


@dataclass(frozen=True)
class Place:
    """A folder of images of four classes, labels of some of the first two, and how to train on them."""

    root: Path
    truth: dict[str, int]

    @property
    def options(self) -> dict[str, Any]:
        return {"backbone": MODEL, "weights": self.root / "backbone.pth", "size": SIZE}

    def discover(self, out: str, **changes: Any) -> dict[str, Any]:
        given = {"folder": self.root / "photos", "labels": self.root / "labels.csv", "classes": 4} | self.options
        return api.discover(out=self.root / out, **(given | changes))

    def labels(self, text: str, name: str = "other.csv") -> Path:
        (self.root / name).write_text(text, encoding="utf-8")
        return self.root / name


def make_place(root: Path) -> Place:
    torch.manual_seed(0)
    torch.save(timm.create_model(MODEL, num_classes=0).state_dict(), root / "backbone.pth")
    painter, truth, lines = Painter(0), {}, ["\ufeffclass;path"]  # as a spreadsheet saves it
    for number in range(4 * PER_CLASS):
        kind = number % 4
        path = (
            "a ünïcode \u65e5\u672c/" if number % 3 else "deep/er/"
        ) + f"{number:03d}{'.PNG' if number % 2 else '.jpg'}"
        painter.save(root / "photos" / path, kind, 36, 50)
        truth[path] = kind
        if kind < 2 and number < 4 * LABELLED:
            lines.append(f'"{KNOWN[kind].replace(chr(34), 2 * chr(34))}";{path}')
    lines += [lines[1], f";{path}"]  # said twice, and not labelled
    (root / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    photos = root / "photos"
    (photos / "._000.jpg").write_bytes(b"junk")
    (photos / ".hidden").mkdir()
    shutil.copy(photos / path, photos / ".hidden" / "1.jpg")
    (photos / "notes.txt").write_text("no image")
    (photos / "broken.jpg").write_bytes((photos / "deep/er/000.jpg").read_bytes()[:400])
    (photos / "empty.png").write_bytes(b"")
    Image.new("RGB", (1, 1)).save(photos / ("n" * 240 + ".bmp"))
    Image.new("RGB", (20_000, 40)).save(photos / "wide.png")
    (photos / "link.jpg").symlink_to("deep/er/000.jpg")
    (photos / "loop").symlink_to(".")
    return Place(root, truth)


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> Iterator[None]:
    """So little work goes faster on one thread, in the processes that are started too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def found(place: Place) -> dict[str, Any]:
    """A discovery in `out`, inside the folder of the images: what api.discover returned."""
    return place.discover("photos/out")


@pytest.fixture
def out(place: Place, found: dict[str, Any]) -> Path:
    return place.root / "photos/out"


def table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False)


# -- what a discovery writes -----------------------------------------------------------------------------


def test_predictions_of_every_unlabelled_image(place: Place, found: dict[str, Any], out: Path) -> None:
    predictions = table(out / "predictions.csv")
    assert list(predictions) == ["path", "class", "name", "confidence", "nearest", "score"]
    odd = {"link.jpg", "wide.png", "n" * 240 + ".bmp"}
    labelled = {path for path, kind in place.truth.items() if kind < 2 and int(Path(path).stem) < 4 * LABELLED}
    assert set(predictions["path"]) == (set(place.truth) | odd) - labelled
    assert set(predictions["nearest"]) <= labelled
    of = dict(predictions[["class", "name"]].drop_duplicates().to_numpy())
    assert {c: name for c, name in of.items() if c < 2}.items() <= dict(enumerate(KNOWN)).items()
    assert {name for c, name in of.items() if c >= 2} <= {"new-1", "new-2"}
    assert predictions["confidence"].between(0.25, 1).all()
    assert (found["images"], found["labelled"], found["unreadable"], found["known"], found["K"]) == (51, 10, 2, 2, 4)
    assert sorted(table(out / "unreadable.csv")["path"]) == ["broken.jpg", "empty.png"]


def test_a_discovery_is_scored_as_the_docs_say(place: Place, out: Path, tmp_path: Path) -> None:
    """Against the truth of all images, with its labels as the list of Old classes."""
    truth = pd.DataFrame(
        {"path": list(place.truth), "class": [(*KNOWN, "tulip", "daisy")[k] for k in place.truth.values()]}
    )
    truth.to_csv(tmp_path / "truth.csv", index=False)
    files = out / "predictions.csv", tmp_path / "truth.csv"
    with pytest.raises(UserError, match=r"lacks 10 of the 48 .* \(discover predicts the unlabelled images alone\)$"):
        api.evaluate(*files, old=place.root / "labels.csv")
    scored = api.evaluate(*files, old=place.root / "labels.csv", allow_missing=True)
    assert (scored["n"], scored["classes"], scored["old_classes"]) == (38, 4, 2)
    assert scored["scores"][0]["old"] > 90
    with pytest.raises(UserError, match=r"has no image of .*, only labelled ones, such as .*"):
        api.evaluate(files[0], pd.read_csv(place.root / "labels.csv", sep=";").dropna())


def test_known_classes_keep_their_names(place: Place, out: Path) -> None:
    """The classifier's first outputs are the known classes: most of their images get their own names."""
    predictions = table(out / "predictions.csv").set_index("path")["name"]
    right = [predictions[path] == KNOWN[kind] for path, kind in place.truth.items() if kind < 2 and path in predictions]
    assert np.mean(right) > 0.9


def test_report(found: dict[str, Any], out: Path) -> None:
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in ("New classes", "Known classes", "Map of the images", "What was assumed", "Most typical", "new-1"):
        assert text in page
    assert "rose, &#34;wild&#34; &lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "batch_size is reduced from 128 to 16, because there are only 51 images" in page
    assert f"below {found['threshold']:.4f}, as for 1% of the unlabelled" in page
    assert "1 repeated line skipped" in page
    assert "1 line without a class skipped" in page


def test_every_value_is_kept(out: Path) -> None:
    kept = yaml.safe_load((out / "model/params.yaml").read_text(encoding="utf-8"))
    assert kept == model.load(out / "model").parameters
    assert kept["batch_size"] == 16
    assert set(chosen("quick", None, None, None)) <= set(kept)


def test_the_same_again_trains_nothing(place: Place, found: dict[str, Any], out: Path) -> None:
    before = {name: file_sha256(out / name) for name in ("predictions.csv", "report.html", "model/model.pt")}
    stamp = next((out / "work").glob("images-*/features-*/run-*/finished/run.json")).stat().st_mtime_ns
    (out / "report.html").unlink()  # so the results are made once more, from the finished run
    assert place.discover("photos/out") == found
    assert {name: file_sha256(out / name) for name in before} == before
    assert next((out / "work").glob("images-*/features-*/run-*/finished/run.json")).stat().st_mtime_ns == stamp


def test_a_finished_discovery_is_answered_without_a_write(place: Place, found: dict[str, Any], out: Path) -> None:
    before = tree(out)
    assert place.discover("photos/out") == found
    assert tree(out) == before


# -- interrupted -----------------------------------------------------------------------------------------


def test_a_killed_discovery_goes_on_to_the_same_result(place: Place, out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "killed"
    words = ["discover", str(place.root / "photos"), "--labels", str(place.root / "labels.csv"), "--classes", "4"]
    words += [
        "--backbone",
        MODEL,
        "--weights",
        str(place.root / "backbone.pth"),
        "--size",
        str(SIZE),
        "--out",
        str(mine),
    ]
    command = [sys.executable, "-m", "ctxgcd", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not list(mine.glob("work/images-*/features-*/run-*/last.pt")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not (mine / "predictions.csv").exists()
    [bank] = mine.glob("work/images-*/features-*/view_bank.npy")
    stamp = bank.stat().st_mtime_ns
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert re.search(r"resumed after epoch \d", again.stderr)
    assert "view bank" not in again.stderr
    assert bank.stat().st_mtime_ns == stamp
    assert f"report: {mine / 'report.html'}" in again.stdout
    assert (mine / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()


def test_another_setting_or_other_images_start_clean(place: Place, tmp_path: Path, capsys: Any) -> None:
    """In a copy: with other epochs the features serve again; with another image nothing does."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine, symlinks=True)
    place.discover(str(mine), seed=1)
    said = capsys.readouterr().out
    assert "with different seed; it is kept until this one is complete" in said
    assert "view bank" not in said
    assert len(list(mine.glob("work/images-*/features-*/run-*"))) == 1
    photos = tmp_path / "photos"
    shutil.copytree(place.root / "photos", photos, symlinks=True, ignore=shutil.ignore_patterns("out"))
    os.utime(photos / "deep/er/000.jpg", (1, 1))
    with pytest.raises(UserError, match="--classes is 90: 88 new classes cannot be found among 43 unlabelled images"):
        place.discover(str(mine), folder=photos, classes=90)
    assert (mine / "predictions.csv").exists()  # refused before anything was touched
    place.discover(str(mine), folder=photos)
    said = capsys.readouterr().out
    assert "with different images, seed" in said
    assert "view bank" in said
    assert len(list(mine.glob("work/images-*"))) == 1


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file of a folder, with its time and content."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, file_sha256(path))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weights": "other.pth"}, "do not fit"),
        ({"backbone": "test_vit"}, "do not fit"),
        ({"size": 5000}, "--size is 5000"),
        ({"labels": "other.csv"}, "no labelled image can be read"),
    ],
    ids=["weights", "backbone", "size", "labels"],
)
def test_a_refused_request_leaves_the_results(
    place: Place, found: dict[str, Any], tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pth")
    (tmp_path / "other.csv").write_text("path,class\nbroken.jpg,iris\n")
    before = tree(mine)
    files = {key: tmp_path / value for key, value in changes.items() if key in ("weights", "labels")}
    with pytest.raises(UserError, match=problem):
        place.discover(str(mine), **(changes | files))
    assert tree(mine) == before
    assert place.discover(str(mine)) == found


def test_a_stopped_request_leaves_the_results_of_the_old_one(
    place: Place, found: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    """Ctrl-C while another one trains: the old one is answered from what is kept, then the other one resumes."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    before = tree(mine)
    options = {"--labels": "labels.csv", "--weights": "backbone.pth", "--out": str(mine)}
    words = [word for name, file in options.items() for word in (name, str(place.root / file))]
    words += ["--backbone", MODEL, "--size", str(SIZE), "--classes", "4", "--seed", "1"]
    command = [sys.executable, "-m", "ctxgcd", "discover", str(place.root / "photos"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not (begun := list(mine.glob("work/images-*/features-*/run-*/last.pt"))):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    after = tree(mine)
    assert {name: after[name] for name in before} == before
    assert place.discover(str(mine)) == found
    assert begun[0].exists()
    capsys.readouterr()
    place.discover(str(mine), seed=1)
    assert "resumed after epoch" in capsys.readouterr().out
    assert [path.parent for path in begun] == list(mine.glob("work/images-*/features-*/run-*"))


def test_room_for_the_training_is_checked(
    place: Place, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy whose images and features are kept: what another seed's training writes is all that is needed."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    usage = shutil.disk_usage(mine)._replace(free=10_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(
            UserError, match=r"has 10 MB free, but training in addition to the discovery .* needs 2. MB more"
        ):
            place.discover(str(mine), seed=1)
        assert place.discover(str(mine)) == found


# -- K ---------------------------------------------------------------------------------------------------


def test_estimated_k(place: Place, out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "auto"
    shutil.copytree(out, mine)
    estimated = place.discover(str(mine), classes="auto")
    assert estimated["K_source"] == "estimated"
    assert 3 <= estimated["K"] <= 12
    assert estimated["K"] in estimated["tried"]
    assert "Estimation of K" in (mine / "report.html").read_text(encoding="utf-8")


def test_new_classes_are_named_by_size() -> None:
    assigned = pd.Series([0, 0, 2, 4, 4, 4, 3])
    assert _names(["iris", "new-2"], assigned, 6) == ["iris", "new-2", "new-3", "new-4", "new-1", "new-5"]


def test_new_classes_avoid_the_known_names_in_any_spelling() -> None:
    assigned = pd.Series([0, 1, 2])
    for known in ("New-1", "NEW-1", "\uff4eew-1"):  # the last one with a full-width n
        assert _names([known], assigned, 3) == [known, "new-2", "new-3"]


# -- new images ------------------------------------------------------------------------------------------


def test_predict_agrees_with_discover(place: Place, out: Path) -> None:
    of_discover = table(out / "predictions.csv").set_index("path")
    predicted, about = api.predict(out / "model", place.root / "photos")
    assert sorted(about["unreadable"]) == ["broken.jpg", "empty.png"]
    common = predicted.set_index("path").loc[of_discover.index]
    assert (common["class"] == of_discover["class"]).all()
    assert (common["name"].str.replace("\r", "") == of_discover["name"]).all()
    assert np.allclose(common["confidence"], of_discover["confidence"], atol=2e-4)
    assert np.allclose(common["score"], of_discover["score"], atol=2e-4)
    # The labelled images are there too, and each is its own nearest example.
    own = predicted[~predicted["path"].isin(of_discover.index)]
    assert (own["path"] == own["nearest"]).mean() > 0.8


def test_threshold(place: Place, found: dict[str, Any], out: Path, tmp_path: Path) -> None:
    scores = table(out / "predictions.csv")["score"]
    assert found["threshold"] == pytest.approx(scores.min())  # 1% of 41 images
    predicted, about = api.predict(out / "model", place.root / "photos")
    assert about["threshold"] == found["threshold"]
    assert (predicted["none_of_these"] == (predicted["score"] < about["threshold"])).all()
    middle = float(scores.median())
    predicted, _ = api.predict(out / "model", place.root / "photos", threshold=middle)
    assert 0 < predicted["none_of_these"].sum() < len(predicted)
    assert (predicted["none_of_these"] == (predicted["score"] < middle)).all()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["predict", "nowhere", "photos"], "nowhere contains no model.pt"),
        (["predict", "out/model", "empty"], "empty contains no images"),
        (["predict", "out/model", "broken"], "none of the 1 images can be decoded, first: "),
        (["export", "nowhere", "x.onnx"], "nowhere contains no model.pt|export requires"),
        (["predict", "damaged", "broken"], "damaged/model.pt is damaged"),
        (
            ["discover", "photos", "--labels", "l.csv", "--out", "x", "--classes", "many"],
            "--classes is 'many'; give auto",
        ),
    ],
)
def test_commands_refuse(
    out: Path,
    tmp_path: Path,
    words: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("empty", "photos", "broken", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken/x.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "damaged/model.pt").write_bytes(b"x")
    (tmp_path / "out").symlink_to(out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctxgcd", *words])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert re.search(problem, capsys.readouterr().err.splitlines()[-1])


def test_a_mistake_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    """That takes seconds; so do packing and features, before which weights that do not fit are told."""
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    Image.new("RGB", (9, 9), "red").save(tmp_path / "b.png")
    for name, lines in {"one.csv": "a.png,ant", "none.csv": "", "all.csv": "a.png,ant\nb.png,bee"}.items():
        (tmp_path / name).write_text(f"path,class\n{lines}\n")
    discover = ["discover", ".", "--out", "out", "--labels"]
    refused = {
        "nowhere is not a folder": ["discover", "nowhere", "--labels", "one.csv", "--out", "out"],
        "nowhere.csv does not exist": [*discover, "nowhere.csv"],
        "labels no image": [*discover, "none.csv"],
        "all 2 images have a label": [*discover, "all.csv"],
        "--classes is 9": [*discover, "one.csv", "--classes", "9"],
        "weights of efficientnet_lite0: nowhere.pth does not exist": [*discover, "one.csv", "--weights", "nowhere.pth"],
        "--settings": [*discover, "one.csv", "--settings", "fast"],
        "--threshold is 2.0": ["predict", "model", ".", "--threshold", "2"],
        "model contains no model.pt": ["export", "model", "x.onnx"],
    }
    code = (
        "import io, json, sys\nfrom contextlib import redirect_stderr\nfrom ctxgcd.cli.command import main\n"
        "for problem, words in json.loads(sys.argv[1]).items():\n"
        "    sys.argv = ['ctxgcd', *words]\n"
        "    with redirect_stderr(io.StringIO()) as told:\n"
        "        try: main()\n"
        "        except SystemExit as end: print(end.code, problem in told.getvalue(), 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, json.dumps(refused)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 True False"] * len(refused), done.stdout
    assert not (tmp_path / "out").exists()


LONG = "n" * 300
TO = ("discover photos --labels l.csv --classes 2 --out", "predict model photos --out", "export model")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "discover photos --labels l.csv --classes 2 --out shut/o",
            "shut/o/predictions.csv cannot be read or written (Permission",
        ),
        (
            f"discover photos --labels l.csv --classes 2 --out {LONG}",
            f"{LONG} cannot be read or written (File name too long); give",
        ),
        (
            "discover locked/photos --labels l.csv --out o",
            "locked/photos cannot be read or written (Permission denied)",
        ),
        ("discover photos --labels locked/l.csv --out o", "locked/l.csv cannot be read (Permission denied)"),
        ("discover photos --labels l.csv --weights locked/w.pth --out o", "locked/w.pth cannot be read or written"),
        (
            "discover photos --labels l.csv --classes 2 --out locked/o",
            "locked/o cannot be read or written (Permission denied)",
        ),
        ("predict locked/model photos --out o.csv", "locked/model/model.pt cannot be read or written (Permission"),
        ("predict model locked/photos --out o.csv", "locked/photos cannot be read or written (Permission denied)"),
        ("predict model photos --out shut/p.csv", "shut/p.csv cannot be read or written (Permission denied)"),
        ("predict model photos --out locked/p.csv", "locked/p.csv cannot be read or written (Permission denied)"),
        ("predict model photos --out photos", "photos is a folder; give the path of a file"),
        (
            "predict model photos --out l.csv",
            "l.csv exists and was not written by `ctxgcd predict`; choose another file",
        ),
        *(
            (f"{words} l.csv/o", "l.csv is a file, so no folder can be created below it; choose another path")
            for words in TO
        ),
        *(
            (f"{words} gone", "gone is a link to nowhere, which does not exist; delete the link or choose")
            for words in TO
        ),
        *((f"{words} gone/o", "gone is a link to nowhere, which does not exist; delete the link") for words in TO),
        ("discover photos --labels l.csv --weights photos --out o", "photos is a folder; give a .pth, .pt or .safe"),
        ("discover photos --labels l.csv --seed -1 --out o", "--seed is -1; give an integer from 0 to 4294967295"),
        (
            f"predict model photos --out {LONG}",
            f"{LONG} cannot be read or written (File name too long); give a shorter",
        ),
        (f"predict {LONG} photos", f"{LONG}/model.pt cannot be read or written (File name too long)"),
        ("export model shut/x.onnx", "shut/x.onnx cannot be read or written (Permission denied); check the folder"),
        (f"export model {LONG}", f"{LONG} cannot be read or written (File name too long); give a shorter name"),
        ("export model photos", "photos is a folder; give the path of a file"),
        ("export locked/model x.onnx", "locked/model/model.pt cannot be read or written (Permission denied)"),
        ("evaluate l.csv l.csv --old locked/old.txt", "locked/old.txt cannot be read or written (Permission denied)"),
        ("evaluate l.csv locked/l.csv", "locked/l.csv cannot be read (Permission denied)"),
    ],
)
def test_what_the_file_system_refuses_is_one_sentence_before_torch_is_loaded(
    tmp_path: Path, words: str, problem: str
) -> None:
    """Permissions bind root too, once it gives up the capability to ignore them."""
    for name in ("photos", "locked", "shut", "model"):
        (tmp_path / name).mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / "photos" / name)
    (tmp_path / "l.csv").write_text("path,class\na.png,ant\n")
    (tmp_path / "model/model.pt").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "shut").chmod(0o555)
    code = "import sys\nfrom ctxgcd.cli.command import main\ntry: main()\nfinally: print('torch' in sys.modules)\n"
    bound = [] if os.getuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    command = [*bound, sys.executable, "-c", code, *words.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "l.csv", "locked", "model", "photos", "shut"]
    assert not list((tmp_path / "shut").iterdir())
    (tmp_path / "locked").chmod(0o755)


def test_weights_that_do_not_fit_are_told_before_packing(place: Place, tmp_path: Path) -> None:
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=f"other.pth' for {MODEL} on images of 32 pixels do not fit"):
        place.discover(str(tmp_path / "out"), weights=tmp_path / "other.pth")
    assert not list((tmp_path / "out").rglob("images.npz*"))


def test_the_command_prints_progress_on_stderr_and_results_on_stdout(
    out: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, made = place.root / "photos", tmp_path / "new.csv"
    monkeypatch.setattr(sys, "argv", ["ctxgcd", "predict", str(out / "model"), str(photos), "--out", str(made)])
    main()
    said = capsys.readouterr()
    assert re.fullmatch(r"51 images classified, \d+ of them none of these classes .*new.csv\n", said.out)
    assert "classified: 51 of 51 images" in said.err
    assert "note: broken.jpg is skipped" in said.err
    assert len(table(made)) == 51


@pytest.mark.parametrize("command", ["discover", "predict", "export"])
def test_the_examples_of_every_help_are_right(command: str) -> None:
    [parsers] = [action for action in parser()._actions if isinstance(action.choices, dict)]
    examples = re.findall(r"^  ctxgcd (.*)$", str(parsers.choices[command].epilog), re.MULTILINE)
    assert 2 <= len(examples) <= 3
    for example in examples:
        assert callable(parser().parse_args(shlex.split(example)).call)


# -- ONNX ------------------------------------------------------------------------------------------------

with_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in export.NEEDED),
    reason="the extra `export` (onnx, onnxruntime, onnxscript) is not installed",
)


@with_onnx
def test_export_gives_what_torch_gives(place: Place, out: Path, tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    about = api.export(out / "model", tmp_path / "model.onnx")
    assert about["difference"] < 1e-4
    assert {p.key for p in onnx.load(tmp_path / "model.onnx").metadata_props} >= {"classes", "threshold", "input"}
    # A photograph, prepared by hand as the metadata says, gets discover's own class and confidence.
    path = "deep/er/036.jpg"
    expected = table(out / "predictions.csv").set_index("path").loc[path]
    image = Image.open(place.root / "photos" / path).convert("RGB")
    resize = model.load(out / "model").parameters["resize"]
    scale = resize / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (round((side - SIZE) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32).transpose(2, 0, 1)[None] / 255
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    _, confidences = session.run(None, {"images": pixels})
    assert int(confidences.argmax()) == expected["class"]
    assert float(confidences.max()) == pytest.approx(expected["confidence"], abs=0.01)


@with_onnx
def test_an_export_overwrites_an_export_alone(out: Path, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "labels.csv", tmp_path / "model.onnx"
    theirs.write_text("path,class\n")
    with pytest.raises(
        UserError, match=r"labels.csv exists and was not written by `ctxgcd export`; choose another file"
    ):
        api.export(out / "model", theirs)
    for inside in ("model.pt", "new.onnx"):
        with pytest.raises(UserError, match="is in the folder of the model; choose a file in another folder"):
            api.export(out / "model", out / "model" / inside)
    assert theirs.read_text() == "path,class\n"
    assert {path.name for path in (out / "model").iterdir()} == {"model.pt", "params.yaml"}
    first = api.export(out / "model", mine)
    assert api.export(out / "model", mine) == first


@with_onnx
def test_an_export_that_differs_is_refused(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="the outputs of ONNX and PyTorch differ"):
        api.export(out / "model", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_export_says_what_to_install(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "NEEDED", ("json", "onnx_of_the_moon"))
    with pytest.raises(UserError, match=r"not installed; run `pip install onnx_of_the_moon"):
        api.export(out / "model", tmp_path / "model.onnx")


# -- bad input -------------------------------------------------------------------------------------------

FIRST = "deep/er/000.jpg"


@pytest.mark.parametrize(
    ("text", "classes", "problem"),
    [
        ("", 4, r"other.csv is empty"),
        ("path,class\n", 4, r"other.csv labels no image; label some images of at least one known class"),
        (f"path,class\n{FIRST},\n", 4, r"labels no image"),
        (f"path,klass\n{FIRST},iris\n", 4, r"has the columns path, klass, but expected class"),
        (f"{FIRST},iris\n", 4, r"other.csv line 1 is 'deep/er/000.jpg,iris', which has no known .* must be path,class"),
        (f"sep=;\n{FIRST};iris\n", 4, r"other.csv line 2 is .*; the first line must be path,class"),
        (f"path,class,name\n{FIRST},0,iris\n", 4, r"has several columns .*: class and name; keep only one"),
        (
            f"File,Label,Class_name\n{FIRST},0,iris\n",
            4,
            r"has several columns .*: class_name and label; .* rename it to class",
        ),
        (
            "path,class\ndeep/er/00.jpg,iris\n",
            4,
            r"labels 1 image that is not in .*: line 2 'deep/er/00.jpg' \(did you mean 'deep/er/0\d0.jpg'\?\); write",
        ),
        (
            f"path,class\n{FIRST},iris\n./{FIRST},rose\n",
            4,
            r"has different rows for the image deep/er/000.jpg, on lines 2 and 3",
        ),
        (f"path,class\n{FIRST},iris\n", "auto", r"needs labelled images of at least 2 classes"),
        (
            f"path,class\n{FIRST},iris\ndeep/er/003.PNG,b\ndeep/er/006.jpg,c\n",
            2,
            r"--classes is 2, but the labels name 3 classes \('b', 'c', 'iris'\); give",
        ),
        (f"path,class\n{FIRST},iris\n", 1, r"--classes is 1, but the labels name 1 class \('iris'\); .* at least 2"),
        (f"path,class\n{FIRST},iris\n", 1000, r"999 new classes cannot be found among 52 unlabelled images"),
        (
            f"path,class\n{FIRST},iris\ndeep/er/003.PNG,ro\0se\n",
            4,
            r"other.csv line 3 contains a NUL byte; delete it",
        ),
        (f'path,class\n{FIRST},a\n"no\t\nwhere.png",b\n', 4, r"is not in .*: line 4 'no\\t\\nwhere.png' \(did"),
        ("path,class\nbroken.jpg,iris\n", 4, r"no labelled image can be read"),
    ],
)
def test_labels_that_cannot_be_used(place: Place, tmp_path: Path, text: str, classes: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        place.discover(str(tmp_path / "out"), labels=place.labels(text), classes=classes)


def test_all_labelled(place: Place, tmp_path: Path) -> None:
    painter = Painter(1)
    for name in "ab":
        painter.save(tmp_path / "photos" / f"{name}.png", 0, 20, 30)
    labels = place.labels("path,class\na.png,x\nb.png,y\n")
    with pytest.raises(UserError, match="all 2 images have a label, so there is nothing to discover"):
        place.discover(str(tmp_path / "out"), folder=tmp_path / "photos", labels=labels)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["a.jpge"], "labels 1 image that is not in {photos}: line 3 'a.jpge' (did you mean 'a.jpg'?); write paths"),
        (
            ["a.jpge", "zzzzzzz", "SUB/foto 101.JPG"],
            "labels 3 images that are not in {photos}: line 3 'a.jpge' (did you mean 'a.jpg'?), line 4 'zzzzzzz', "
            "line 5 'SUB/foto 101.JPG' (did you mean 'sub/Foto 101.jpg'?); write paths relative to that folder",
        ),
        (
            ["zzzzzzz", "yyyyyyy", "xxxxxxx", "vvvvvvv", "wwwwwww"],
            "labels 5 images that are not in {photos}: line 3 'zzzzzzz', line 4 'yyyyyyy', line 5 'xxxxxxx' and 2 more",
        ),
        # The file of that name, not the one whose path has the most alike letters.
        (["C:\\Users\\me\\photos\\Foto 101.jpg"], "line 3 'C:/Users/me/photos/Foto 101.jpg' (did you mean 'sub/Foto"),
        (
            ["/home/me/photos/sub/Foto 101.jpg"],
            "line 3 '/home/me/photos/sub/Foto 101.jpg' (did you mean 'sub/Foto 101.jpg'?)",
        ),
        (["D:/b/d.jpg"], "line 3 'D:/b/d.jpg' (did you mean 'b/d.jpg'?); write paths relative to that folder"),
        (["D:/Foto 103.jpg"], "line 3 'D:/Foto 103.jpg'; write paths relative to that folder"),
    ],
)
def test_labels_of_images_that_are_not_there(place: Place, tmp_path: Path, written: list[str], said: str) -> None:
    there = ("a.jpg", "b.jpg", "Foto 102.jpg", "sub/Foto 101.jpg", "a/d.jpg", "b/d.jpg", "c/d.jpg")
    photos, paths = photos_of(tmp_path / "photos", *there)
    labels = place.labels("path,class\nb.jpg,wren\n" + "".join(f"{path},ant\n" for path in written))
    with pytest.raises(UserError) as raised:
        read_labels(labels, photos, paths)
    assert said.format(photos=photos) in str(raised.value)


def test_columns_that_are_swapped(place: Place, tmp_path: Path) -> None:
    """Two images of one class would be two things said of one image."""
    photos, paths = photos_of(tmp_path / "photos", "a.png", "sub/b.png", f"{NFC}.png", "d.png")
    lines = f"Albatros à pieds noirs,./sub/b.png\nAlbatros à pieds noirs,a.png\nwren,{NFD}.png\n"
    with pytest.raises(UserError) as raised:
        read_labels(place.labels(f"File,Label\n,a.png\n{lines}"), photos, paths)
    assert str(raised.value) == (
        f"the columns file and label of {place.root / 'other.csv'} look swapped: line 3 has the file 'Albatros à pieds "
        "noirs' and the label './sub/b.png'; swap their names in the first line"
    )
    labels, _ = read_labels(place.labels(f"label,file\n{lines}"), photos, paths)
    assert len(labels) == 3
    # A class may have an image's name.
    assert read_labels(place.labels("path,class\na.png,d.png\n"), photos, paths)[0] == {"a.png": "d.png"}


def test_the_paper_settings_without_a_network(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that cannot be fetched are told before OUT is made, with the option that names a file of them."""
    (tmp_path / "mirror").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("CTXGCD_DATA", raising=False)
    monkeypatch.setenv("CTXGCD_MIRROR", (tmp_path / "mirror").as_uri())
    with pytest.raises(
        UserError, match=r"pth cannot be downloaded .*; how to get it: download .* --weights FILE$"
    ) as raised:
        place.discover(str(tmp_path / "out"), settings="long", backbone=None, weights=None)
    assert "params.yaml" not in str(raised.value)
    assert "data/raw" not in str(raised.value)
    assert not list((tmp_path / "here").iterdir())
    file = tmp_path / "here/data/raw/weights/dino_vitbase16_pretrain.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"delete it to download it again, or download .* --weights FILE$"):
        place.discover(str(tmp_path / "out"), settings="long", backbone=None, weights=None)
    assert not (tmp_path / "out").exists()


def test_full_paths_are_labels_too(place: Place) -> None:
    photos = place.root / "photos"
    labels, _ = read_labels(place.labels(f"file\tlabel\n{photos / FIRST}\tiris\n"), photos, list(place.truth))
    assert labels == {FIRST: "iris"}


@pytest.mark.parametrize(
    "text",
    [
        f"sep=;\r\npath;class\r\n{FIRST};iris\r\n",
        f"path,class,,\n{FIRST},iris,,\n,,,\n",
        f"path,class\n{FIRST},iris,,\n",
        f"Filename,Label\n{FIRST},iris\n",
        f"IMAGE,Class_Name,name of the photographer\n{FIRST},iris,Ann\n",
    ],
)
def test_labels_as_spreadsheets_save_them(place: Place, text: str) -> None:
    assert read_labels(place.labels(text), place.root / "photos", list(place.truth)) == ({FIRST: "iris"}, [])


def test_our_own_predictions_are_no_labels(place: Place, out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"in predictions.csv, name has the names and class has numbers"):
        place.discover(str(tmp_path / "out"), labels=out / "predictions.csv")
    assert not (tmp_path / "out").exists()


NFC, NFD = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))


def photos_of(folder: Path, *paths: str | bytes) -> tuple[Path, list[str]]:
    """A folder of small images at these paths, and the paths that are read of it."""
    for number, path in enumerate(paths):
        file = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(path)))
        Painter(number).save(file.with_suffix(".png"), number % 2, 20, 30)
        file.with_suffix(".png").rename(file)
    return folder, images_below(folder)


@pytest.mark.parametrize(("on_disk", "written"), [(NFC, NFD), (NFD, NFC)])
def test_labels_in_another_unicode_form(place: Place, tmp_path: Path, on_disk: str, written: str) -> None:
    photos, paths = photos_of(tmp_path / on_disk, f"{on_disk}/{on_disk}.png", "a.png", "b.png")
    full = str(photos).replace(on_disk, written)
    labels = place.labels(f"path,class\n./{written}/{written}.png,{NFC}\n{full}/a.png,{NFD}\nb.png,wren\n")
    of, said = read_labels(labels, photos, paths)
    assert of == {f"{on_disk}/{on_disk}.png": NFC, "a.png": NFC, "b.png": "wren"}
    assert said == [f"other.csv: classes written in more than one Unicode form, which count as one class each: '{NFC}'"]


def test_a_class_of_one_form_keeps_its_name(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", "a.png", "b.png")
    assert read_labels(place.labels(f"path,class\na.png,{NFD}\n"), photos, paths) == ({"a.png": NFD}, [])


def test_two_files_whose_names_differ_in_their_unicode_form(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", f"{NFC}-{NFC}.png", f"{NFD}-{NFD}.png")
    labels = place.labels(f"path,class\n{NFC}-{NFC}.png,ant\n{NFD}-{NFD}.png,bee\n")
    of, said = read_labels(labels, photos, paths)
    assert of == {f"{NFC}-{NFC}.png": "ant", f"{NFD}-{NFD}.png": "bee"}
    assert said == [f"different images whose names differ only in their Unicode form: '{NFC}-{NFC}.png'"]
    with pytest.raises(
        UserError, match=r"matches '.*\\u0308.*' and 'K\\xe4fer.*photos, which differ only in their Unicode"
    ):
        read_labels(place.labels(f"path,class\n{NFC}-{NFD}.png,ant\n"), photos, paths)


def test_one_image_labelled_in_two_forms(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", f"{NFC}.png")
    text = f"path,class\n{NFC}.png,ant\n{NFD}.png,"
    assert read_labels(place.labels(f"{text}ant\n"), photos, paths)[0] == {f"{NFC}.png": "ant"}
    with pytest.raises(UserError, match=r"has different rows for the image .*, on lines 2 and 3"):
        read_labels(place.labels(f"{text}bee\n"), photos, paths)


def test_labels_of_files_that_are_left_out(place: Place, tmp_path: Path) -> None:
    """A camera's own format, hidden files: they are there, so a label of them is not a mistyped name."""
    photos, paths = photos_of(tmp_path / "photos", "a.png", "b.png", "c.HEIC", f"{NFD}.heif", ".d.png", ".e/f.png")
    left_out = ["c.HEIC", f"{NFC}.heif", ".d.png", ".e/f.png"]
    lines = "".join(f"{path},lark\n" for path in left_out)
    of, said = read_labels(place.labels(f"path,class\na.png,wren\n{lines}"), photos, paths)
    assert of == {"a.png": "wren"}
    assert said == [
        "other.csv: ignored the labels of files that are hidden or have an unsupported format: "
        f"{', '.join(map(repr, left_out))}; save them as JPEG to include them",
        "no labelled image of lark can be read, so it is not a known class",
    ]
    with pytest.raises(UserError, match="labels only files that are hidden or have"):
        read_labels(place.labels(f"path,class\n{lines}"), photos, paths)
    shutil.copy(photos / "c.HEIC", tmp_path / "g.HEIC")
    for path in ("g.HEIC", "../g.HEIC", str(tmp_path / "g.HEIC")):
        with pytest.raises(UserError, match="labels 1 image that is not in"):
            read_labels(place.labels(f"path,class\na.png,wren\n{path},lark\n"), photos, paths)


def test_names_that_no_table_can_keep(place: Place, out: Path, tmp_path: Path) -> None:
    """Names in Latin-1, with a carriage return: all are listed, and left out as images that cannot be read."""
    odd = [b"\xe4/3.png", b"k\xe4fer.png", b"a\rb.png"]
    photos, paths = photos_of(tmp_path / "photos", "0.png", "1.png", "2.png", *odd, b"notes\xff.txt")
    assert paths == ["0.png", "1.png", "2.png"]
    labels = place.labels("path,class\n0.png,x\n")
    found = place.discover(str(tmp_path / "out"), folder=photos, labels=labels, classes=2)
    assert (found["images"], found["unreadable"]) == (3, 3)
    assert "3 images cannot be read; see unreadable.csv" in found["notes"]
    unreadable = table(tmp_path / "out/unreadable.csv").set_index("path")["reason"].to_dict()
    assert unreadable == {
        "\\xe4/3.png": "its name is not UTF-8; rename it",
        "k\\xe4fer.png": "its name is not UTF-8; rename it",
        "a\\rb.png": "its name has a carriage return; rename it",
    }
    predicted, about = api.predict(out / "model", photos)
    assert (predicted["path"].tolist(), about["unreadable"]) == (paths, unreadable)
    for path in paths:
        (photos / path).unlink()
    with pytest.raises(
        UserError, match=r"contains no images; .*rename 'a\\rb.png', 'k\\xe4fer.png', .* to include them"
    ):
        images_below(photos)


def test_one_labelled_class_of_a_handful_of_images(place: Place, tmp_path: Path) -> None:
    painter = Painter(2)
    for number in range(5):
        painter.save(tmp_path / "photos" / f"{number}.png", number % 2, 20, 30)
    labels = place.labels("path,class\n0.png,x\n")
    found = place.discover(str(tmp_path / "out"), folder=tmp_path / "photos", labels=labels, classes=2)
    assert len(table(tmp_path / "out/predictions.csv")) == 4
    assert any("batch_size is reduced from" in line for line in found["adapted"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"folder": Path("nowhere")}, "nowhere is not a folder"),
        ({"settings": "quik"}, "--settings: unknown preset 'quik'; did you mean 'quick'"),
        ({"backbone": "efficientnet_lite", "weights": None}, "did you mean 'efficientnet_lite0'"),
        ({"weights": None}, f"--backbone {MODEL} requires weights"),
        ({"weights": Path("nowhere.pth")}, "weights of test_efficientnet: nowhere.pth does not exist"),
        ({"backbone": "efficientnet_lite0"}, "do not fit"),
        ({"size": 4}, "--size is 4; give 8 to 1,024 pixels"),
        ({"size": 5000}, "--size is 5000; give 8 to 1,024 pixels"),
        ({"seed": -1}, "--seed is -1; give an integer from 0 to 4294967295"),
        ({"seed": 2**32}, "--seed is 4294967296; give an integer from 0 to 4294967295"),
    ],
)
def test_options_that_cannot_be_used(place: Place, tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        place.discover(str(tmp_path / "out"), **changes)


def test_what_a_camera_and_a_careless_hand_leave(place: Place, tmp_path: Path) -> None:
    """Links to nowhere, kinds that are not read, a class without a readable image, names that differ in case."""
    painter, photos = Painter(3), tmp_path / "photos"
    for number in range(8):
        painter.save(photos / f"{number}.png", number % 2, 20, 30)
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    (photos / "a.HEIC").write_bytes(b"")
    (photos / "b.gif").write_bytes(b"")
    labels = place.labels("Path,Class\n0.png,wren\n1.png,Wren\ngone.jpg,lark\n")
    found = place.discover(str(tmp_path / "out"), folder=photos, labels=labels, classes=4)
    assert (found["images"], found["unreadable"], found["known"]) == (8, 1, 2)
    assert table(tmp_path / "out/unreadable.csv")["path"].tolist() == ["gone.jpg"]
    for note in (
        "other.csv: 'wren' and 'Wren' count as two classes",
        "unsupported files: 1 .gif, 1 .heic; save them as JPEG to include them",
        "no labelled image of lark can be read, so it is not a known class",
    ):
        assert note in found["notes"]


def test_nothing_is_written_over(
    place: Place, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place.root / "photos" / "deep", tmp_path / "few")

    def predict(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ctxgcd", "predict", str(out / "model"), str(tmp_path / "few"), *words])
        main()
        return capsys.readouterr().out

    before = (out / "predictions.csv").read_bytes()
    with pytest.raises(SystemExit, match="2"):
        predict("--out", str(out / "predictions.csv"))
    assert "exists and was not written by `ctxgcd predict`; choose another file with --out" in capsys.readouterr().err
    assert (out / "predictions.csv").read_bytes() == before
    own = "--out", str(tmp_path / "p.csv")
    assert predict(*own) == predict(*own)
    with pytest.raises(SystemExit, match="2"):
        predict("--threshold", "nan")
    assert "--threshold is nan; give a number between -1 and 1" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; give a new or empty folder with --out"):
        place.discover(str(tmp_path / "file"))


def test_a_folder_of_other_files_is_left_alone(place: Place) -> None:
    for out in ("photos", "."):
        with pytest.raises(UserError, match="contains other files; give a new or empty folder"):
            place.discover(out)


# -- presets ---------------------------------------------------------------------------------------------


def test_presets_agree_with_the_workflow(params: Params) -> None:
    """The long preset is the workflow's protocol and sections, and backbones are those of params.yaml."""
    presets = read_presets()
    assert presets.backbones == params.backbones
    long, quick = presets.presets["long"], presets.presets["quick"]
    assert long.protocol == params.protocols["official"]
    assert long.methods == {method: params.methods[method] for method in ("simgcd", "full")}
    assert quick.protocol.model_dump(exclude={"epochs"}) == params.protocols["cub50"].model_dump(exclude={"epochs"})
    shorter = {"T_warm", "teacher_warmup_epochs"}
    for method, values in quick.methods.items():
        of_cub50 = {**params.methods[method], **params.benchmarks["cub50"].methods[method]}
        assert values.keys() == of_cub50.keys()
        assert {key for key in values if values[key] != of_cub50[key]} <= shorter


def test_backbones_bring_their_sizes() -> None:
    assert (chosen("quick", None, None, None)["resize"], chosen("quick", None, None, None)["crop"]) == (110, 96)
    dino = chosen("quick", "dino_vitb16", "w.pth", None)
    assert (dino["crop"], dino["tail_lr_factor"], dino["weights"], dino["sha256"]) == (224, 1.0, "w.pth", "")
    assert chosen("long", None, None, None)["model"] == "vit_base_patch16_224.dino"
    assert (chosen(*("quick", None, None), 64)["resize"], chosen("quick", None, None, 64)["crop"]) == (73, 64)


@pytest.mark.parametrize(
    ("images", "batch", "k"), [(5, 5, 2), (40, 16, 8), (300, 37, 10), (1024, 128, 10), (9999, 128, 10)]
)
def test_small_sets_have_small_batches(images: int, batch: int, k: int) -> None:
    made, said = fitted(chosen("quick", None, None, None), images)
    assert (made["batch_size"], made["k"]) == (batch, k)
    assert bool(said) == (images < 1024)
    assert estimate_of(images, 2, 1)["most"] == min(200, max(images // 4, 4))
