"""Make the environment of `make`: a link to a folder whose name contains a hash of its sources.

It runs before anything is installed, so it and its imports only use the standard library.
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
READY = ".ready-"  # followed by a hash: marks a complete environment and contains its sources
LOCK = ".lock"  # held by the process that makes the environment, and by its pip
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
STEPS = (("--requirement", "requirements.lock"), ("--no-deps", "--no-build-isolation", "--editable", "."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("link", type=Path, help="path of the environment, a link")
    link = parser.parse_args().link
    with on_disk(link):
        bring(link, made_from())


def bring(link: Path, sources: dict[str, str]) -> None:
    """Point the link to a complete environment of these sources, created if missing."""
    if is_ready(link, sources):
        return
    if os.path.lexists(link) and not is_ours(link):
        raise UserError(
            f"{link} exists but was not made by this Makefile; choose another folder with `make VENV=folder ...`"
        )
    folder = link.with_name(f"{link.name}-{_hash(sources)}")
    with locked(folder) as lock:
        if is_ready(link, sources):  # made by another process in the meantime
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
    """Return the sources of an environment: the pins, what pip reads of pyproject.toml, and Python's minor version."""
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
    """Return whether a folder, or the target of a link, is a complete environment of these sources.

    Earlier environments, marked with the hash of the pins only, are still used.
    """
    if not any((folder / f"{READY}{mark}").exists() for mark in (_hash(sources), sources["requirements.lock"])):
        return False
    if not (folder / "bin" / "python").exists():
        raise UserError(
            f"the Python of {folder.resolve()} no longer exists; delete this folder and run the same command again"
        )
    return True


def is_ours(link: Path) -> bool:
    """Return whether an environment was made by this script, even if it is a link to a deleted folder."""
    left = link.is_symlink() and re.fullmatch(rf"{re.escape(link.name)}-[0-9a-f]{{16}}", os.readlink(link))
    return (link / OURS).exists() or bool(left)


def changed(link: Path, sources: dict[str, str]) -> str:
    """Return a description of the changes since the current environment was made."""
    for mark in link.glob(f"{READY}*"):
        former = json.loads(mark.read_text(encoding="utf-8") or "null") or sources | {"requirements.lock": ""}
        return f"{' and '.join(name for name in sources if former.get(name) != sources[name])} changed"
    return f"{link} is incomplete"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Create and lock the folder; yield the lock's file descriptor. It ends with the last process that holds it."""
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
    """Install everything into a folder; restart if an interrupted call left a partial environment.

    pip holds the lock too, because it may outlive this process. Raises UserError if a step fails; the message ends with
    `otherwise`.
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
    """Delete the content of a folder except its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def switch(link: Path, folder: Path) -> Path | None:
    """Point the link to another folder atomically; return its previous target.

    A folder in place of the link, made before environments were links, is renamed first.
    """
    former = link.resolve() if link.exists() else None
    new = folder / ".link"  # relative, so it stays valid when it is moved
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
