"""Environments of `make environment`. Only pip is replaced: it installs a program that prints the pins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.places import ROOT
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.slow

PYTHON = str(sys._base_executable)  # type: ignore[attr-defined]  # without a single package
MARKS = ".ready-*"

# Found before Python's own, by PYTHONPATH: `python -m venv` without the seconds of its pip, and a pip that installs
# bin/tool, which tells the pins, and then does what the file `how` says.
VENV = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-I", "-m", "venv", "--without-pip", *sys.argv[1:]]))
"""
PIP = """
import sys, time
from pathlib import Path
if "--requirement" in sys.argv:
    tool = Path(sys.prefix, "bin", "tool")
    tool.write_text("#!/bin/sh\\necho " + Path("requirements.lock").read_text())
    tool.chmod(0o755)
how = Path("how").read_text() if Path("how").exists() else ""
if how == "fail":
    sys.exit("ERROR: no connection")
if how == "wait":
    Path("waiting").touch()
    while Path("how").exists():
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Checkout:
    folder: Path

    @property
    def environment(self) -> Path:
        return self.folder / ".venv"

    def command(self, *words: str) -> list[str]:
        return ["make", "--no-print-directory", f"PYTHON={PYTHON}", *(words or ("environment",))]

    def variables(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VENV"))}
        return own | {"PYTHONPATH": str(self.folder.parent / "stand-ins")}

    def make(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*words), cwd=self.folder, env=self.variables(), text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def tool(self, at: Path | None = None) -> str:
        """Return the pins that the environment was installed from, printed by its program."""
        return subprocess.run([(at or self.environment) / "bin/tool"], capture_output=True, text=True).stdout.strip()

    def made(self) -> list[str]:
        """Return the complete environments next to the link."""
        return sorted(folder.parent.name for folder in self.folder.glob(f".venv-*/{MARKS}"))

    def made_before(self) -> str:
        """Make a folder as before environments were links; return the name of its mark."""
        self.make()
        folder = self.environment.resolve()
        (mark,) = folder.glob(MARKS)
        pins = mark.read_text().split('"')[3]
        mark.unlink()
        self.environment.unlink()
        folder.rename(self.environment)
        (self.environment / f".ready-{pins}").touch()
        return pins


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "the checkout"
    (folder / "workflow/scripts").mkdir(parents=True)
    shutil.copytree(ROOT / "ctxgcd", folder / "ctxgcd", ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
    for name in ("Makefile", "pyproject.toml", "workflow/scripts/make_environment.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "requirements.lock").write_text("one==1")
    (tmp_path / "stand-ins").mkdir()
    (tmp_path / "stand-ins/venv.py").write_text(VENV)
    (tmp_path / "stand-ins/pip.py").write_text(PIP)
    return Checkout(folder)


def test_an_environment_is_made_once(checkout: Checkout) -> None:
    output = checkout.make()
    (name,) = checkout.made()
    assert output == f"making the environment {name}\n.venv now links to {name}\n"
    assert os.readlink(checkout.environment) == name
    assert checkout.tool() == "one==1"
    before = (checkout.folder / name).stat().st_mtime_ns
    assert checkout.make() == ""
    assert (checkout.folder / name).stat().st_mtime_ns == before


@pytest.mark.parametrize("file", ["requirements.lock", "pyproject.toml"])
def test_a_touched_file_does_nothing(checkout: Checkout, file: str) -> None:
    checkout.make()
    os.utime(checkout.folder / file, (time.time() + 99, time.time() + 99))
    checkout.write("how", "fail")
    assert checkout.make() == ""


def test_what_pip_does_not_read_of_pyproject_does_nothing(checkout: Checkout) -> None:
    checkout.make()
    project = (checkout.folder / "pyproject.toml").read_text()
    checkout.write("pyproject.toml", project.replace("line-length = 120", "line-length = 100"))
    assert checkout.make() == ""
    checkout.write(
        "pyproject.toml", project.replace('ctxgcd = "ctxgcd.cli.command:main"', 'gcd = "ctxgcd.cli.command:main"')
    )
    assert checkout.make().startswith("pyproject.toml changed; ")


def test_a_changed_lock_makes_another_environment(checkout: Checkout) -> None:
    checkout.make()
    (first,) = checkout.made()
    kept = checkout.folder / first
    checkout.write("requirements.lock", "one==2")
    output = checkout.make()
    (second,) = set(checkout.made()) - {first}
    assert output.splitlines() == [
        f"requirements.lock changed; making a new environment in {second}",
        f".venv now links to {second}",
        f"{kept} is kept for processes that still use it; delete it when none does",
    ]
    assert (checkout.tool(), checkout.tool(kept)) == ("one==2", "one==1")
    checkout.write("requirements.lock", "one==1")
    checkout.write("how", "fail")  # nothing is installed, because the first environment is complete
    assert checkout.make().splitlines()[0] == f".venv now links to {first}"
    shutil.rmtree(kept)  # a broken link
    (checkout.folder / "how").unlink()
    checkout.make()
    assert checkout.tool() == "one==1"


def test_running_recipes_keep_their_environment(checkout: Checkout) -> None:
    """A recipe runs the target of the link, so that later imports are not from another environment."""
    checkout.make()
    folder = checkout.environment.resolve()
    with (checkout.folder / "Makefile").open("a") as file:
        file.write('\nshow: environment\n\t@$(BIN)/python -c "import sys; print(sys.prefix)"\n')
    assert checkout.make("show").strip() == str(folder)
    checkout.write("requirements.lock", "one==2")
    assert checkout.make("show").splitlines()[-1] == str(checkout.environment.resolve()) != str(folder)


def test_a_failed_installation_leaves_the_one_in_use(checkout: Checkout) -> None:
    checkout.write("how", "fail")
    assert "status 1, so no environment was made; there is no environment yet" in checkout.make(code=2)
    assert not os.path.lexists(checkout.environment)
    (checkout.folder / "how").unlink()
    checkout.make()
    checkout.write("requirements.lock", "one==2")
    checkout.write("how", "fail")
    output = checkout.make(code=2)
    assert "requirements.lock changed; " in output
    assert "ERROR: no connection\nerror: `python -m pip install " in output
    assert "status 1, so no environment was made; .venv is unchanged\n" in output
    assert (checkout.tool(), len(checkout.made())) == ("one==1", 1)
    (checkout.folder / "how").unlink()
    checkout.make()
    assert checkout.tool() == "one==2"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_installation_leaves_the_one_in_use(checkout: Checkout, number: int) -> None:
    checkout.make()
    checkout.write("requirements.lock", "one==2")
    checkout.write("how", "wait")
    with subprocess.Popen(
        checkout.command(), cwd=checkout.folder, env=checkout.variables(), start_new_session=True
    ) as call:
        wait_for((checkout.folder / "waiting").exists)
        os.killpg(call.pid, number)
    assert call.returncode != 0
    assert (checkout.tool(), len(checkout.made())) == ("one==1", 1)
    (half,) = {path.name for path in checkout.folder.glob(".venv-*")} - set(checkout.made())
    checkout.write(f"{half}/bin/left", "half a program")
    (checkout.folder / "how").unlink()
    checkout.make()
    assert checkout.tool() == "one==2"
    assert not (checkout.environment / "bin/left").exists()


def test_two_calls_make_one_environment(checkout: Checkout) -> None:
    """Also if the first call was killed and its pip was not."""
    checkout.write("how", "wait")
    calls: list[Callable[[], str]] = []
    for _ in range(2):
        call = subprocess.Popen(
            checkout.command(), cwd=checkout.folder, env=checkout.variables(), stdout=subprocess.PIPE, text=True
        )
        calls.append(lambda call=call: call.communicate(timeout=30)[0])  # type: ignore[misc]
        wait_for((checkout.folder / "waiting").exists)
    time.sleep(1)
    (checkout.folder / "how").unlink()
    first, second = (call() for call in calls)
    (name,) = checkout.made()
    assert first == f"making the environment {name}\n.venv now links to {name}\n"
    assert second == f"waiting for another process that makes {name}\n"


def test_make_waits_for_a_pip_that_outlives_its_call(checkout: Checkout) -> None:
    checkout.write("how", "wait")
    call = subprocess.Popen(
        [PYTHON, "-m", "workflow.scripts.make_environment", ".venv"], cwd=checkout.folder, env=checkout.variables()
    )
    wait_for((checkout.folder / "waiting").exists)
    call.kill()
    call.wait()
    again = subprocess.Popen(
        checkout.command(), cwd=checkout.folder, env=checkout.variables(), stdout=subprocess.PIPE, text=True
    )
    assert again.stdout
    assert again.stdout.readline().startswith("waiting for another process that makes .venv-")
    assert again.poll() is None
    (checkout.folder / "how").unlink()
    again.communicate(timeout=30)
    assert checkout.tool() == "one==1"


def test_a_folder_of_the_former_makefile_is_still_used(checkout: Checkout) -> None:
    checkout.made_before()
    checkout.write("how", "fail")
    os.utime(checkout.folder / "requirements.lock", (time.time() + 99, time.time() + 99))
    assert checkout.make() == ""
    assert not checkout.environment.is_symlink()


def test_a_folder_of_the_former_makefile_is_replaced_when_the_new_one_is_complete(checkout: Checkout) -> None:
    checkout.made_before()
    checkout.write("requirements.lock", "one==2")
    checkout.write("how", "fail")
    checkout.make(code=2)
    assert checkout.tool() == "one==1"
    assert not checkout.environment.is_symlink()
    (checkout.folder / "how").unlink()
    output = checkout.make()
    assert output.startswith("requirements.lock changed; ")
    former = Path(output.splitlines()[-1].partition(" is kept for processes that still use it")[0])
    assert (checkout.tool(), checkout.tool(former)) == ("one==2", "one==1")
    assert former.parent == checkout.folder


@pytest.mark.parametrize("kind", ["folder", "file", "link", "link to nothing"])
def test_what_another_program_made_is_refused(checkout: Checkout, kind: str) -> None:
    checkout.write("how", "fail")
    other = checkout.folder / "other"
    if kind == "folder":
        (checkout.environment / "bin").mkdir(parents=True)
    elif kind == "file":
        checkout.environment.touch()
    else:
        checkout.environment.symlink_to("other")
        if kind == "link":
            other.mkdir()
    assert ".venv exists but was not made by this Makefile; choose another folder with `make VENV=" in checkout.make(
        code=2
    )
    assert os.path.lexists(checkout.environment)
    assert not list(checkout.folder.glob(".venv-*"))


def test_an_environment_elsewhere(checkout: Checkout) -> None:
    place = checkout.folder.parent / "another place" / "env"
    checkout.make(f"VENV={place}", "environment")
    assert checkout.tool(place) == "one==1"
    assert place.is_symlink()
    assert not os.path.lexists(checkout.environment)
    assert f'"{place.resolve()}/bin"/python -m pytest' in checkout.make(f"VENV={place}", "-n", "test")


def test_a_missing_or_too_old_python_is_refused(checkout: Checkout) -> None:
    checkout.make()
    python = checkout.environment / "bin/python"
    python.unlink()
    python.symlink_to("/absent/python3")
    assert f"the Python of {checkout.environment.resolve()} no longer exists; delete" in checkout.make(code=2)
    old = checkout.folder / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    output = checkout.make("PYTHON=./old", "environment", code=2)
    assert output.startswith(
        "error: ./old is not supported: ctxgcd requires Python 3.11 or newer; select one with make"
    )


def test_a_folder_that_is_not_writable_is_refused(checkout: Checkout) -> None:
    (checkout.folder / "file").touch()
    output = checkout.make("VENV=file/env", "environment", code=2)
    assert output.startswith("error: file/env cannot be read or written (Not a directory); check the folder")


def test_git_ignores_the_link_and_what_it_names(checkout: Checkout) -> None:
    shutil.copy(ROOT / ".gitignore", checkout.folder)
    subprocess.run(["git", "init", "--quiet"], cwd=checkout.folder, check=True)
    checkout.make()
    found = subprocess.run(["git", "status", "--short"], cwd=checkout.folder, capture_output=True, text=True).stdout
    assert "Makefile" in found
    assert "venv" not in found
