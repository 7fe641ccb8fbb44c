"""Which code a step has: digests of modules, what scripts reach by imports, and declared equality."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.pipeline import code, equality
from ctxgcd.pipeline.digest import content_digest

ROOT = Path(__file__).parents[2]
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
def test_what_does_not_run_is_no_content(change: str) -> None:
    assert SAME[change] != SOURCE
    assert content_digest(SAME[change]) == content_digest(SOURCE)


@pytest.mark.parametrize("change", OTHER)
def test_what_runs_is_content(change: str) -> None:
    assert OTHER[change] != SOURCE
    assert content_digest(OTHER[change]) != content_digest(SOURCE)


def test_the_digest_is_that_of_every_python() -> None:
    """Equal under 3.11, 3.12 and 3.13; written down here, so that each Python that runs the tests checks it."""
    assert content_digest(SOURCE) == "1ae9f2dc0129fd9f"


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


# -- what is reached -------------------------------------------------------------------------------------


def checkout(folder: Path, **files: str) -> Path:
    """A checkout of these modules, `losses__entropy` for ctxgcd/losses/entropy.py."""
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
    """Also where another one of the same module is named."""
    before = code.training("gcd").hash, code.pack("cub").hash, code.training("simgcd").hash
    monkeypatch.setitem(METHODS, "gcd", replace(METHODS["gcd"], cls="ctxgcd.methods.gcd.Other"))
    reader = code.READERS["cub"]._replace(images="ctxgcd.benchmarks.readers.decoding:as_seen")
    monkeypatch.setitem(code.READERS, "cub", reader)
    after = code.training("gcd").hash, code.pack("cub").hash, code.training("simgcd").hash
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_rooms_import_nothing() -> None:
    """Else whatever they import would be reached by each of their modules."""
    full = [file for file in PACKAGE.rglob("__init__.py") if content_digest(file.read_text()) != content_digest("")]
    assert full == [PACKAGE / "__init__.py"]
    assert content_digest(full[0].read_text()) == content_digest('__version__ = "0.1.0"\n')


def test_every_data_file_counts_with_its_reader() -> None:
    """Or stands beside the package's code for a reason that is written here."""
    counted = {path for patterns in code.DATA.values() for pattern in patterns for path in PACKAGE.glob(pattern)}
    entered = {*PACKAGE.glob("benchmarks/class_lists/*"), *PACKAGE.glob("benchmarks/embedded/**/*")}  # by their hashes
    declared = {equality.FILE, PACKAGE / "py.typed"}
    files = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert files - counted - entered - declared == set()


def test_modules_without_numbers_are_there_with_a_reason() -> None:
    for name, reason in code.WITHOUT_NUMBERS.items():
        assert code._file(name, ROOT).is_file(), name
        assert reason


ENTROPY = "ctxgcd.losses.entropy"


def test_a_step_reaches_what_it_needs_and_no_more() -> None:
    readers = {"cub", "scars", "aircraft", "cifar", "class_folders", "png_sheet", "own_images"}

    def of_readers(modules: object) -> set[str]:
        return {name.removeprefix("ctxgcd.benchmarks.readers.") for name in modules} & readers  # type: ignore[attr-defined]

    assert of_readers(code.manifest("cub").modules) == {"cub"}
    assert of_readers(code.split("cub").modules) == {"cub"}
    assert of_readers(code.pack("cub").modules) == set()  # the images of single files are opened alike
    assert of_readers(code.pack("cifar10").modules) == {"cifar"}
    assert {m for m in METHODS if ENTROPY in code.training(m).modules} == {"simgcd", "full"}
    assert {m for m in METHODS if "ctxgcd.methods.gcd" in code.training(m).modules} == {"gcd"}
    assert {m for m in METHODS if "ctxgcd.losses.neighbourhood" in code.training(m).modules} == {"full"}
    assert {m for m in METHODS if "ctxgcd.clustering.semi_kmeans" in code.training(m).modules} == {"gcd"}
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
def test_a_job_whose_code_changed_after_planning_is_refused(tmp_path: Path, step: str) -> None:
    """Its result would lie under the name of the other code, and be taken for it when the change is reverted."""
    out = ["--out", "made"] if step not in ("score_run", "estimate_k") else []
    words = [sys.executable, str(ROOT / f"workflow/scripts/{step}.py"), *CHANGED[step], "--code", "of before", *out]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stderr
    assert done.stderr == "error: the code changed after this call planned the job; run the same command again\n"
    assert not list(tmp_path.iterdir())


def test_which_file_of_a_package_is_read_is_code() -> None:
    """A run says no more of such weights than `package`."""
    assert "ctxgcd.models.packages" in code.script(code.WEIGHTS).modules


# -- declared equality -----------------------------------------------------------------------------------


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of declarations in place of the committed one."""
    file = tmp_path / "equal_code.csv"
    file.write_text("module,old,new,reason\n")
    monkeypatch.setattr(equality, "FILE", file)
    for cached in (equality.older, equality.oldest):
        cached.cache_clear()
        monkeypatch.setattr(equality, cached.__name__, cached)
    yield file  # type: ignore[misc]
    for cached in (equality.older, equality.oldest):
        cached.cache_clear()


def test_the_oldest_digest_stands_for_a_chain(declared: Path) -> None:
    assert equality.oldest("a1") == {"a1"}
    assert equality.declare({"a": "a1"}, {"a": "a2"}, {}, "renamed") == ["a"]
    assert equality.declare({"a": "a2"}, {"a": "a3"}, {}, "renamed again") == ["a"]
    assert equality.oldest("a3") == equality.oldest("a2") == equality.oldest("a1") == {"a1"}
    assert code.hash_of(["a3", "b1"]) == code.hash_of(["a1", "b1"]) != code.hash_of(["a4", "b1"])
    assert equality.declare({"a": "a3"}, {"a": "a1"}, {}, "back") == []  # equal already
    assert declared.read_text().splitlines()[1:] == ["a,a1,a2,renamed", "a,a2,a3,renamed again"]


def test_a_module_that_is_divided_or_joined_stays_equal(declared: Path) -> None:
    equality.declare({"store": "s1"}, {"store": "s2", "pack": "p1"}, {"pack": "store"}, "divided")
    assert code.hash_of(["s2", "p1", "x"]) == code.hash_of(["s2", "x"]) == code.hash_of(["s1", "x"])
    equality.declare({"a": "a1", "b": "b1"}, {"a": "a2"}, {"a": "b"}, "joined")
    assert code.hash_of(["a2"]) == code.hash_of(["a1", "b1"])


def test_an_unknown_module_is_refused(declared: Path) -> None:
    with pytest.raises(UserError, match=r"unknown module 'pakc'; did you mean 'pack'\?"):
        equality.declare({"pack": "p1"}, {"pack": "p2"}, {"pakc": "pack"}, "divided")
    assert len(declared.read_text().splitlines()) == 1


def test_a_circle_of_declarations_is_refused(declared: Path) -> None:
    declared.write_text("module,old,new,reason\na,a1,a2,x\na,a2,a1,y\n")
    with pytest.raises(UserError, match="is declared equal to itself"):
        equality.oldest("a1")


@pytest.mark.parametrize(
    "line", ["<<<<<<< HEAD", "a,a1", "a,a1,a2", "a,,a2,why", "a,a1,a2,why,more", 'a,a1,a2,"why', "\xff"]
)
def test_a_damaged_line_of_declarations_is_refused(declared: Path, line: str) -> None:
    """Passed over, it would make results again."""
    declared.write_bytes(declared.read_bytes() + line.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=r"equal_code.csv (line 2|cannot be read)"):
        equality.oldest("a2")


def test_a_file_of_declarations_without_its_head_or_at_all_is_refused(declared: Path) -> None:
    for content in ("", "a,a1,a2,why\n"):
        declared.write_text(content)
        equality.older.cache_clear()
        with pytest.raises(UserError, match=r"equal_code.csv (line 1|cannot be read)"):
            equality.oldest("a2")
    declared.unlink()
    equality.older.cache_clear()
    with pytest.raises(UserError, match=r"equal_code.csv cannot be read"):
        equality.oldest("a2")


def test_a_declaration_begins_a_line_of_its_own(declared: Path) -> None:
    """Also where an editor has taken away the end of the last one, or left an empty line."""
    declared.write_text("module,old,new,reason\na,a1,a2,x\n\nb,b1,b2,y")
    equality.declare({"a": "a2"}, {"a": "a3"}, {}, "z")
    assert (equality.oldest("a3"), equality.oldest("b2")) == ({"a1"}, {"b1"})


def test_the_committed_declarations_can_be_read() -> None:
    for digest in equality.older():
        assert equality.oldest(digest)


def test_the_command_declares_what_changed_since_a_revision(tmp_path: Path) -> None:
    place = tmp_path / "checkout"
    place.mkdir()
    for name in ("ctxgcd", "workflow"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))

    def git(*words: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *words], cwd=place, check=True)

    git("init", "-q")
    git("add", "--all")
    git("commit", "-q", "-m", "all")

    def declare(*words: str) -> tuple[int, str]:
        script = [sys.executable, "workflow/scripts/declare_equal.py", *words]
        done = subprocess.run(
            script, cwd=place, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(place)}
        )
        return done.returncode, done.stdout + done.stderr

    def step() -> str:
        program = "from ctxgcd.pipeline import code\nprint(code.training('simgcd').hash)"
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(place)},
        ).stdout

    before = step()
    loss = place / "ctxgcd/losses/entropy.py"
    loss.write_text(loss.read_text() + "\nUNUSED = 1\n")
    # A part of a module that is moved to one of its own.
    (place / "ctxgcd/losses/moved.py").write_text("MOVED = 1\n")
    (place / "ctxgcd/losses/distill.py").write_text(
        (place / "ctxgcd/losses/distill.py").read_text() + "\nfrom ctxgcd.losses.moved import MOVED\n"
    )
    assert step() != before
    assert declare("--reason", " ")[1].startswith("error: --reason is empty")
    assert "unknown revision 'nowhere'" in declare("--reason", "x", "--since", "nowhere")[1]
    for word, expected in {
        "ctxgcd.losses.entropie": "unknown module 'ctxgcd.losses.entropie'; did you mean 'ctxgcd.losses.entropy'?",
        "ctxgcd/losses/entropy.py": "did you mean 'ctxgcd.losses.entropy'?",
        "ctxgcd.errors": "ctxgcd.errors is part of no step's code (sentences for users); remove it",
        "ctxgcd.losses.info_nce": "ctxgcd.losses.info_nce does not differ from HEAD; remove it, or if the change is",
    }.items():
        status, said = declare("--reason", "x", "--only", word)
        assert status == 2, said
        assert expected in said
    status, said = declare("--reason", "an unused name", "--only", ENTROPY)
    assert status == 0
    assert "1 module declared equal: ctxgcd.losses.entropy\n" in said
    assert "commit ctxgcd/pipeline/equal_code.csv with the change" in said
    assert "  training of simgcd: ctxgcd/losses/distill.py changed, ctxgcd/losses/moved.py is new\n" in said
    assert step() != before
    # The further word is one behind --only too.
    status, said = declare(
        "--reason", "moved", "--only", "ctxgcd.losses.distill", "ctxgcd.losses.moved=ctxgcd.losses.distill"
    )
    assert status == 0, said
    assert "2 modules declared equal" in said
    assert "the code of every step is equal" in said
    assert step() == before
    assert declare("--reason", "again")[1].startswith("nothing to declare")
    git("commit", "-q", "-a", "-m", "the change")
    git("add", "--all")
    git("commit", "-q", "-m", "the new module")
    status, said = declare("--reason", "too late")
    assert status == 2
    assert "no module differs from HEAD; if the change is committed, give the revision before it" in said
    shutil.rmtree(place / ".git")
    assert "unknown revision 'HEAD': fatal: not a git repository" in declare("--reason", "x")[1]
