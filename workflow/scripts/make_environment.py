"""Make the environment of `make`: a link to a folder beside it, one for each content of what it is made from.

It runs before anything is installed, so it and what it imports need the standard library alone.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ctxgcd.errors import UserError
from ctxgcd.utils.files import on_disk, write_text
from ctxgcd.utils.reporting import reported

OURS = ".ctxgcd"  # in every environment of this project's Makefile
READY = ".ready-"  # and a hash: the environment is complete; it holds what the environment was made from
LOCK = ".lock"  # held by the process that makes the environment, and by its pip
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
STEPS = (("--requirement", "requirements.lock"), ("--no-deps", "--no-build-isolation", "--editable", "."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("link", type=Path, help="the environment as its users name it")
    link = parser.parse_args().link
    with on_disk(link):
        bring(link, made_from())


def bring(link: Path, sources: dict[str, str]) -> None:
    """Let the link name a complete environment of these sources, which is made first where there is none."""
    if is_ready(link, sources):
        return
    if os.path.lexists(link) and not is_ours(link):
        raise UserError(
            f"{link} exists but was not made by this Makefile; choose another folder with `make VENV=folder ...`"
        )
    folder = link.with_name(f"{link.name}-{_hash(sources)}")
    with locked(folder) as lock:
        if is_ready(link, sources):  # made by the process that this one has waited for
            return
        if not is_ready(folder, sources):
            used = link.exists()
            if used:
                print(f"{changed(link, sources)}; making a new environment in {folder}", flush=True)
            else:
                print(f"making the environment {folder}", flush=True)
            make(folder, lock, f"{link} is unchanged" if used else "there is no environment yet")
            write_text(folder / f"{READY}{_hash(sources)}", json.dumps(sources))
        former = switch(link, folder)
    print(f"{link} now links to {folder}")
    if former and former.parent == folder.resolve().parent:
        print(f"{former} is kept for processes that still use it; delete it when none does")


def made_from() -> dict[str, str]:
    """What an environment depends on: the pins, what pip reads of pyproject.toml, and Python's minor version."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    read = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("setuptools")]
    return {
        "requirements.lock": hashlib.sha256(Path("requirements.lock").read_bytes()).hexdigest()[:16],
        "pyproject.toml": _hash(read),
        "Python": str(sys.implementation.cache_tag),
    }


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def is_ready(folder: Path, sources: dict[str, str]) -> bool:
    """Whether a folder, or what it links to, is a complete environment of these sources.

    Before environments were links, the pins alone were in a complete one's name; such a one is used on.
    """
    if not any((folder / f"{READY}{mark}").exists() for mark in (_hash(sources), sources["requirements.lock"])):
        return False
    if not (folder / "bin" / "python").exists():
        raise UserError(
            f"the Python of {folder.resolve()} no longer exists; delete this folder and run the same command again"
        )
    return True


def is_ours(link: Path) -> bool:
    """Whether it was made here; also a link that is left where its folder was deleted."""
    left = link.is_symlink() and re.fullmatch(rf"{re.escape(link.name)}-[0-9a-f]{{16}}", os.readlink(link))
    return (link / OURS).exists() or bool(left)


def changed(link: Path, sources: dict[str, str]) -> str:
    """Say what differs between the environment in use and the one that is asked for."""
    for mark in link.glob(f"{READY}*"):
        former = json.loads(mark.read_text(encoding="utf-8") or "null") or sources | {"requirements.lock": ""}
        return f"{' and '.join(name for name in sources if former.get(name) != sources[name])} changed"
    return f"{link} is incomplete"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Make the folder and hold its lock, whose file number is given, alone. The lock ends with its last process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that makes {folder}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield file.fileno()


def make(folder: Path, lock: int, otherwise: str) -> None:
    """Install everything into a folder, anew where an interrupted call has left a part.

    pip holds the lock too: it may outlive this process. Raises UserError where a step fails, which ends in `otherwise`.
    """
    clear(folder)
    (folder / OURS).touch()
    python = str(folder / "bin" / "python")
    for step in ([sys.executable, "-m", "venv", str(folder)], *([python, *PIP, *what] for what in STEPS)):
        if status := subprocess.run(step, pass_fds=[lock]).returncode:
            clear(folder)
            raise UserError(
                f"`python {' '.join(step[1:])}` failed with status {status}, so no environment was made; {otherwise}"
            )


def clear(folder: Path) -> None:
    """Delete all in a folder but its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def switch(link: Path, folder: Path) -> Path | None:
    """Let the link name another folder, at once; return the folder that it named before.

    A real folder at its place is renamed first: it was made before environments were links.
    """
    former = link.resolve() if link.exists() else None
    new = folder / ".link"  # relative, so it holds at its later place
    new.unlink(missing_ok=True)
    new.symlink_to(folder.name)
    if former and not link.is_symlink():
        former = link.resolve().with_name(f"{link.name}-{datetime.now():%Y%m%dT%H%M%S}")
        link.rename(former)
    os.replace(new, link)
    return former


if __name__ == "__main__":
    with reported():
        main()
