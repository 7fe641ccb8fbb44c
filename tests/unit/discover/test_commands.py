"""The commands `discover`, `predict` and `export`: their output, and errors before torch is loaded."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from ctxgcd.cli.command import main, parser
from ctxgcd.errors import UserError
from tests.helpers.discovery import MODEL, Place, table
from tests.helpers.places import ENVIRONMENT


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
    out: Path, tmp_path: Path, words: list[str], problem: str, refused_call: Callable[..., str]
) -> None:
    for name in ("empty", "photos", "broken", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken/x.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "damaged/model.pt").write_bytes(b"x")
    (tmp_path / "out").symlink_to(out)
    assert re.search(problem, refused_call(*words).splitlines()[-1])


def test_invalid_arguments_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    """Loading torch takes seconds. Weights that do not fit are reported before packing and features."""
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
        "--preset": [*discover, "one.csv", "--preset", "fast"],
        "--threshold is 2.0": ["predict", "model", ".", "--threshold", "2"],
        "model contains no model.pt": ["export", "model", "x.onnx"],
    }
    code = (
        "import io, json, sys\nfrom contextlib import redirect_stderr\nfrom ctxgcd.cli.command import main\n"
        "for problem, words in json.loads(sys.argv[1]).items():\n"
        "    sys.argv = ['ctxgcd', *words]\n"
        "    with redirect_stderr(io.StringIO()) as errors:\n"
        "        try: main()\n"
        "        except SystemExit as end: print(end.code, problem in errors.getvalue(), 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(refused)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 True False"] * len(refused), done.stdout
    assert not (tmp_path / "out").exists()


LONG = "n" * 300
TO = ("discover photos --labels l.csv --classes 2 --out", "predict model photos --out", "export model")


@pytest.mark.slow
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
def test_errors_of_the_file_system_are_reported_before_torch_is_loaded(
    tmp_path: Path, words: str, problem: str
) -> None:
    """The process drops the capability of root to ignore permissions."""
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
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "l.csv", "locked", "model", "photos", "shut"]
    assert not list((tmp_path / "shut").iterdir())
    (tmp_path / "locked").chmod(0o755)


def test_weights_that_do_not_fit_are_reported_before_packing(place: Place, tmp_path: Path) -> None:
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
    output = capsys.readouterr()
    assert re.fullmatch(r"51 images classified, \d+ of them none of these classes .*new.csv\n", output.out)
    assert "classified: 51 of 51 images" in output.err
    assert "note: broken.jpg is skipped" in output.err
    assert len(table(made)) == 51


@pytest.mark.parametrize("command", ["discover", "label", "sort", "predict", "export"])
def test_the_examples_of_every_help_are_right(command: str) -> None:
    [parsers] = [action for action in parser()._actions if isinstance(action.choices, dict)]
    examples = re.findall(r"^  ctxgcd (.*)$", str(parsers.choices[command].epilog), re.MULTILINE)
    assert 2 <= len(examples) <= 3
    for example in examples:
        assert callable(parser().parse_args(shlex.split(example)).call)
