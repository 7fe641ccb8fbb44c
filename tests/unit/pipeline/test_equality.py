"""Code that is declared equal: chains, damaged declarations, and the command that declares."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ctxgcd.errors import UserError
from ctxgcd.pipeline import code, equality
from tests.helpers.forked import programs
from tests.helpers.places import ROOT

ENTROPY = "ctxgcd.losses.entropy"


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of declarations instead of the committed one."""
    file = tmp_path / "equal_code.csv"
    file.write_text("module,old,new,reason\n")
    monkeypatch.setattr(equality, "FILE", file)
    for cached in (equality.older, equality.oldest):
        cached.cache_clear()
        monkeypatch.setattr(equality, cached.__name__, cached)
    yield file  # type: ignore[misc]
    for cached in (equality.older, equality.oldest):
        cached.cache_clear()


def test_the_oldest_digest_of_a_chain_is_used(declared: Path) -> None:
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


def test_a_cycle_of_declarations_is_refused(declared: Path) -> None:
    declared.write_text("module,old,new,reason\na,a1,a2,x\na,a2,a1,y\n")
    with pytest.raises(UserError, match="is declared equal to itself"):
        equality.oldest("a1")


@pytest.mark.parametrize(
    "line", ["<<<<<<< HEAD", "a,a1", "a,a1,a2", "a,,a2,why", "a,a1,a2,why,more", 'a,a1,a2,"why', "\xff"]
)
def test_a_damaged_line_of_declarations_is_refused(declared: Path, line: str) -> None:
    """A skipped line would make results again."""
    declared.write_bytes(declared.read_bytes() + line.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=r"equal_code.csv (line 2|cannot be read)"):
        equality.oldest("a2")


def test_a_missing_file_of_declarations_or_head_is_refused(declared: Path) -> None:
    for content in ("", "a,a1,a2,why\n"):
        declared.write_text(content)
        equality.older.cache_clear()
        with pytest.raises(UserError, match=r"equal_code.csv (line 1|cannot be read)"):
            equality.oldest("a2")
    declared.unlink()
    equality.older.cache_clear()
    with pytest.raises(UserError, match=r"equal_code.csv cannot be read"):
        equality.oldest("a2")


def test_a_declaration_starts_a_new_line(declared: Path) -> None:
    """Also if an editor removed the last line break, or left an empty line."""
    declared.write_text("module,old,new,reason\na,a1,a2,x\n\nb,b1,b2,y")
    equality.declare({"a": "a2"}, {"a": "a3"}, {}, "z")
    assert (equality.oldest("a3"), equality.oldest("b2")) == ({"a1"}, {"b1"})


def test_the_committed_declarations_can_be_read() -> None:
    for digest in equality.older():
        assert equality.oldest(digest)


@pytest.mark.slow
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

    def call(*words: str) -> tuple[int, str]:
        environment = os.environ | {"PYTHONPATH": str(place)}
        done = subprocess.run(
            [programs() / "python", *words], cwd=place, capture_output=True, text=True, env=environment
        )
        return done.returncode, done.stdout + done.stderr

    def declare(*words: str) -> tuple[int, str]:
        return call("workflow/scripts/declare_equal.py", *words)

    def step() -> str:
        status, output = call("step.py")
        assert status == 0, output
        return output

    (place / "step.py").write_text("from ctxgcd.pipeline import code\nprint(code.training('simgcd').hash)\n")
    before = step()
    loss = place / "ctxgcd/losses/entropy.py"
    loss.write_text(loss.read_text() + "\nUNUSED = 1\n")
    # A part of a module that is moved to a new module.
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
        "ctxgcd.errors": "ctxgcd.errors does not belong to the code of any step (error messages); remove it",
        "ctxgcd.losses.info_nce": "ctxgcd.losses.info_nce does not differ from HEAD; remove it, or if the change is",
    }.items():
        status, output = declare("--reason", "x", "--only", word)
        assert status == 2, output
        assert expected in output
    status, output = declare("--reason", "an unused name", "--only", ENTROPY)
    assert status == 0
    assert "1 module declared equal: ctxgcd.losses.entropy\n" in output
    assert "commit ctxgcd/pipeline/equal_code.csv with the change" in output
    assert "  training of simgcd: ctxgcd/losses/distill.py changed, ctxgcd/losses/moved.py is new\n" in output
    assert step() != before
    # The NEW=OLD argument can follow --only.
    status, output = declare(
        "--reason", "moved", "--only", "ctxgcd.losses.distill", "ctxgcd.losses.moved=ctxgcd.losses.distill"
    )
    assert status == 0, output
    assert "2 modules declared equal" in output
    assert "the code of every step is equal" in output
    assert step() == before
    assert declare("--reason", "again")[1].startswith("nothing to declare")
    git("commit", "-q", "-a", "-m", "the change")
    git("add", "--all")
    git("commit", "-q", "-m", "the new module")
    status, output = declare("--reason", "too late")
    assert status == 2
    assert "no module differs from HEAD; if the change is committed, give the revision before it" in output
    shutil.rmtree(place / ".git")
    assert "unknown revision 'HEAD': fatal: not a git repository" in declare("--reason", "x")[1]
