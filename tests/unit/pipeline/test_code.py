"""The code of a step: digests of modules, and the imports of scripts."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.pipeline import code, equality
from ctxgcd.pipeline.digest import content_digest
from tests.helpers.places import ROOT

PACKAGE = ROOT / "ctxgcd"


# -- digests ---------------------------------------------------------------------------------------------

SOURCE = '''"""A docstring."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Loss:
    """Another."""

    name: str = "L_n"  # a comment

    def value(self, x: float, *, weight: float = 0.1) -> float:
        """A third."""
        return weight * x + 1.0e-3


def told(path: Path, k: int) -> str:
    match k:
        case 1 | 2:
            return f"{path!r:>{k}} and " f"{k=}"
        case _:
            return "é" + b"\\xff".hex()
'''


SAME = {
    "comments": SOURCE.replace("  # a comment", "").replace("class Loss", "# of what\nclass Loss"),
    "docstrings": SOURCE.replace('"""Another."""', '"""Other words."""').replace('"""A docstring."""\n', ""),
    "layout": SOURCE.replace("weight * x + 1.0e-3", "(\n            weight * x\n            + 0.001\n        )"),
    "types alone": SOURCE.replace("from pathlib import Path", "from os import PathLike as Path"),
}


OTHER = {
    "a number": SOURCE.replace("0.1", "0.2"),
    "its kind": SOURCE.replace("0.1", "True"),
    "a text": SOURCE.replace("é", "e"),
    "an operator": SOURCE.replace("weight * x +", "weight * x -"),
    "a name": SOURCE.replace("weight", "factor"),
    "the format of a number": SOURCE.replace(":>{k}", ":<{k}"),
    "an import": SOURCE.replace("from typing import TYPE_CHECKING", "from typing import TYPE_CHECKING, Any"),
    "a statement": SOURCE + "Loss = None\n",
}


@pytest.mark.parametrize("change", SAME)
def test_the_digest_ignores_what_does_not_run(change: str) -> None:
    assert SAME[change] != SOURCE
    assert content_digest(SAME[change]) == content_digest(SOURCE)


@pytest.mark.parametrize("change", OTHER)
def test_the_digest_depends_on_what_runs(change: str) -> None:
    assert OTHER[change] != SOURCE
    assert content_digest(OTHER[change]) != content_digest(SOURCE)


def test_the_digest_is_that_of_every_python() -> None:
    """Equal in 3.11, 3.12 and 3.13; the constant is tested by each Python that runs the tests."""
    assert content_digest(SOURCE) == "1ae9f2dc0129fd9f"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_all_modules_have_the_same_digests_under_other_pythons(version: str) -> None:
    program = (
        "import json, pathlib, runpy, sys\n"
        "digest = runpy.run_path(sys.argv[1])['content_digest']\n"
        "texts = [pathlib.Path(f).read_text('utf-8') for f in sys.argv[2:]]\n"
        "print(json.dumps([sys.version_info[:2], [digest(text) for text in texts]]))\n"
    )
    files = sorted(map(str, PACKAGE.rglob("*.py")))
    other = shutil.which(f"python{version}")
    words = ["-c", program, str(PACKAGE / "pipeline" / "digest.py"), *files]
    # An installed Python may be a shim that runs another one, or none.
    environment = os.environ | {"PYENV_VERSION": f"{version}:3.11:3.12:3.13", "PYTHONPATH": ""}
    done = other and subprocess.run([other, *words], capture_output=True, text=True, env=environment)
    if not done or done.returncode:
        pytest.skip(f"python{version} is not installed")
    found, digests = json.loads(done.stdout)
    assert found == [int(part) for part in version.split(".")]
    assert digests == [content_digest(Path(file).read_text("utf-8")) for file in files]


# -- imports -------------------------------------------------------------------------------------


def checkout(folder: Path, **files: str) -> Path:
    """Make a checkout with these modules, `losses__entropy` for ctxgcd/losses/entropy.py."""
    for name, text in {"__init__": "", "losses____init__": "", **files}.items():
        file = folder / "ctxgcd" / f"{name.replace('__', '/', 1) if not name.startswith('__') else name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def reached(root: Path, *names: str) -> list[str]:
    return [name.removeprefix("ctxgcd.") for name in code.reached(*(f"ctxgcd.{n}" for n in names), root=root).modules]


def test_imports_are_followed(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        a="import json\nfrom ctxgcd.b import x\n\ndef lazy():\n    from ctxgcd.losses import entropy\n",
        b="import ctxgcd.c as c\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ctxgcd.d import y\n",
        c="from ctxgcd.errors import UserError\n",
        d="",
        errors="from ctxgcd.d import y\n",
        losses__entropy="",
        losses__cluster="",
    )
    assert reached(root, "a") == ["a", "b", "c", "losses.entropy"]
    assert reached(root, "b", "d") == ["b", "c", "d"]


def test_relative_imports_are_followed_too(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        losses__a="from . import b\nfrom .c import x\nfrom ..d import y\nfrom .. import e\n",
        **{f"losses__{name}": "" for name in "bc"},
        **dict.fromkeys("de", ""),
    )
    assert reached(root, "losses.a") == ["d", "e", "losses.a", "losses.b", "losses.c"]


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING"])
def test_imports_for_types_alone_are_not_followed(tmp_path: Path, test: str) -> None:
    body = f"import typing as t\nif {test}:\n    from ctxgcd.b import x\nelse:\n    from ctxgcd.c import x\n"
    assert reached(checkout(tmp_path, a=body, b="", c=""), "a") == ["a", "c"]


def test_the_path_of_a_module_does_not_count(tmp_path: Path) -> None:
    here = code.reached("ctxgcd.a", root=checkout(tmp_path / "1", a="x = 1\n")).hash
    there = code.reached("ctxgcd.losses.b", root=checkout(tmp_path / "2", losses__b="x = 1\n")).hash
    assert here == there


def test_which_class_an_entry_names_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another class of the same module is named."""
    before = code.training("gcd").hash, code.pack("cub").hash, code.training("simgcd").hash
    monkeypatch.setitem(METHODS, "gcd", replace(METHODS["gcd"], cls="ctxgcd.methods.gcd.Other"))
    reader = code.READER_CODE["cub"]._replace(images="ctxgcd.benchmarks.readers.decoding:as_seen")
    monkeypatch.setitem(code.READER_CODE, "cub", reader)
    after = code.training("gcd").hash, code.pack("cub").hash, code.training("simgcd").hash
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_init_files_import_nothing() -> None:
    """Otherwise each of their modules would reach these imports."""
    full = [file for file in PACKAGE.rglob("__init__.py") if content_digest(file.read_text()) != content_digest("")]
    assert full == [PACKAGE / "__init__.py"]
    assert content_digest(full[0].read_text()) == content_digest('__version__ = "0.1.0"\n')


def test_every_data_file_counts_with_its_reader() -> None:
    """Or is listed here with a reason."""
    counted = {path for patterns in code.DATA.values() for pattern in patterns for path in PACKAGE.glob(pattern)}
    entered = {*PACKAGE.glob("benchmarks/class_lists/*"), *PACKAGE.glob("benchmarks/embedded/**/*")}  # by their hashes
    declared = {equality.FILE, PACKAGE / "py.typed"}
    files = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert files - counted - entered - declared == set()


def test_modules_without_numbers_are_there_with_a_reason() -> None:
    for name, reason in code.WITHOUT_NUMBERS.items():
        assert code.file_of(name, ROOT).is_file(), name
        assert reason


ENTROPY = "ctxgcd.losses.entropy"


def test_a_step_reaches_only_the_modules_that_it_needs() -> None:
    readers = {"cub", "scars", "aircraft", "cifar", "class_folders", "png_sheet", "own_images"}

    def of_readers(modules: object) -> set[str]:
        return {name.removeprefix("ctxgcd.benchmarks.readers.") for name in modules} & readers  # type: ignore[attr-defined]

    assert of_readers(code.manifest("cub").modules) == {"cub"}
    assert of_readers(code.split("cub").modules) == {"cub"}
    assert of_readers(code.pack("cub").modules) == set()  # all readers open single image files in the same way
    assert of_readers(code.pack("cifar10").modules) == {"cifar"}
    assert {m for m in METHODS if ENTROPY in code.training(m).modules} == {"simgcd", "full"}
    assert {m for m in METHODS if "ctxgcd.methods.gcd" in code.training(m).modules} == {"gcd"}
    assert {m for m in METHODS if "ctxgcd.losses.neighbourhood" in code.training(m).modules} == {"full"}
    with_semi_kmeans = {m for m in METHODS if "ctxgcd.clustering.semi_kmeans" in code.training(m).modules}
    assert with_semi_kmeans == {"gcd", "semi_kmeans", "xcon", "dccl", "promptcal"}
    for method in METHODS:
        run = code.run("cub", method).modules
        assert not any(name.startswith(("ctxgcd.evaluation", "ctxgcd.tables", "ctxgcd.plots")) for name in run)
        assert "ctxgcd.benchmarks.split" not in run
        assert {"ctxgcd.images.pack", "ctxgcd.images.resize", "ctxgcd.models.features", "ctxgcd.models.weights"} <= set(
            run
        )


CHANGED = {
    "pack_images": ("--images", '{"reader": "cub"}', "--place", "{}", "--split", "none.csv", "--workers", "1"),
    "prepare_weights": ("--model", "test_vit", "--crop", "32", "--weights", "none.pth", "--sha256="),
    "extract_features": (
        *("--kind", "test_view-tail0-float32", "--parameters", "{}", "--store", "none.npz", "--weights", "none.pt"),
        *("--split", "none.csv", "--threads", "1"),
    ),
    "score_run": (
        *("--run", "run.json", "--assignments", "none.csv", "--split", "none.csv", "--metrics", "metrics.json"),
        *("--predictions", "1.csv", "--test-predictions", "2.csv"),
    ),
    "estimate_k": (
        *("--split", "none.csv", "--features", "none.npy", "--most", "9", "--restarts", "1", "--seed", "0"),
        *("--threads", "1", "--json", "made.json", "--csv", "made.csv"),
    ),
}


@pytest.mark.parametrize("step", CHANGED)
def test_a_job_whose_code_changed_after_planning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    """Its result would have the name of the planned code, and would be used after the change is reverted."""
    out = ["--out", "made"] if step not in ("score_run", "estimate_k") else []
    script = str(ROOT / f"workflow/scripts/{step}.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *CHANGED[step], "--code", "of before", *out])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_path(script, run_name="__main__")
    refused = "error: the code changed after this call planned the job; run the same command again\n"
    assert capsys.readouterr().err == refused
    assert not list(tmp_path.iterdir())


def test_which_file_of_a_package_is_read_is_code() -> None:
    """The parameters of a run contain only `package` for such weights."""
    assert "ctxgcd.models.packages" in code.script(code.WEIGHTS).modules
