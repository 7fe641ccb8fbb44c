"""A small project for the tests of DVC, and calls of its commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.forked import programs, snakemake
from tests.helpers.places import ROOT

PROJECT = ("Snakefile", "params.yaml", "profiles", "workflow", "ctxgcd", "dvc.yaml", ".dvc", ".dvcignore", ".gitignore")
WRITE = "workflow/scripts/write_dvc_stages.py"
COMMANDS = Path(sys.executable).parent
NOTHING = "Nothing to be done"  # Snakemake's words


def environment_in(folder: Path, forked: bool) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(programs())] * forked + [str(COMMANDS), os.environ["PATH"]]),
        "PYTHONPATH": str(folder),
        "CTXGCD_DATA": str(folder / "data" / "raw"),  # empty
        "DVC_SITE_CACHE_DIR": str(folder / ".dvc" / "tmp" / "site"),
    }


def start(folder: Path, command: str, *arguments: str, forked: bool = False) -> subprocess.Popen[str]:
    """Start a command of this environment in a project, in a separate process group.

    With `forked` it calls the forked programs.
    """
    environment = os.environ | environment_in(folder, forked)
    return subprocess.Popen(
        [shutil.which(command, path=environment["PATH"]) or command, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment in a project; stdout contains both streams."""
    if command == "snakemake":
        return subprocess.CompletedProcess(
            arguments, *snakemake(folder, environment_in(folder, forked=True), *arguments)
        )
    process = start(folder, command, *arguments, forked=True)
    output, _ = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def succeed(folder: Path, command: str, *arguments: str) -> str:
    done = run(folder, command, *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def fresh_copy(folder: Path) -> Path:
    """Copy the working tree without generated files, outside git."""
    folder.mkdir()
    for name in PROJECT:
        if (ROOT / name).is_dir():
            made = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
            shutil.copytree(ROOT / name, folder / name, ignore=made)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "now")


def trainings(folder: Path, *targets: str) -> set[str]:
    """Return the rows that a dry run plans to train."""
    output = succeed(folder, "snakemake", "--dry-run", *(targets or ["demo"]))
    return set(re.findall(r"Training fashion (\S+) seed 0", output))


def make_small(folder: Path) -> Path:
    """Make a project in git whose demo has three trainings of two epochs on the 500 labelled images."""
    fresh_copy(folder)
    quick = {"resize": 32, "crop": 32, "tail": "blocks", "view_bank": 0, "epochs": 2}
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params |= {"seeds": [0], "seeds_of": {}, "rows_of": {}}
    params["rows"] = {
        "main": ["full-paper"],
        "ablation": ["full-paper"],
        "open_choices": {"full-paper+tau=1.0": "full-paper"},
        "faster_settings": {"full-paper+precision=bf16": "full-paper"},
    }
    params["sensitivity"] = {"lambda_n": [0.3], "lambda_c": [0.3], "k": [10]}
    params["protocols"]["fashion"] |= quick
    simgcd = {"projector_width": 64, "projection_dim": 64, "teacher_warmup_epochs": 1}
    params["benchmarks"]["fashion"]["methods"] |= {"simgcd": simgcd, "full": {"T_warm": 1, "neighbour_images": 64}}
    params["benchmarks"]["fashion"]["trial"] = True
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    succeed(folder, "python", WRITE)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def change_params(folder: Path, **sections: dict[str, Any]) -> None:
    """Replace values in sections of params.yaml; other values of nested sections do not change."""
    file = folder / "params.yaml"
    params = yaml.safe_load(file.read_text())
    for name, values in sections.items():
        for key, value in values.items():
            own = params[name].get(key)
            params[name][key] = own | value if isinstance(own, dict) and own.keys() & value.keys() else value
    file.write_text(yaml.safe_dump(params, sort_keys=False))
