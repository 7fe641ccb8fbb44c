"""Train the same runs with two checkouts of this project and compare their tensors and predictions bit for bit.

Each checkout is copied to a temporary folder with its own results/ and work/. Exit status 1: a run differs.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.utils.reporting import reported

ROOT = Path(__file__).resolve().parents[2]
RUN_FILES = ("Snakefile", "params.yaml", "profiles", "workflow", "ctxgcd")  # files of a checkout that a run reads
RUNS = Path("results/runs/fashion")
ROWS = ("kmeans", "gcd", "simgcd", "full-paper", "full-released", "full-mended")


@dataclass(frozen=True)
class Way:
    """How runs are made: a suffix of the row's name, and arguments of snakemake.

    fresh: with fresh views and few epochs, because they are slow; the context losses start before the last epoch.
    """

    added: str = ""
    fresh: bool = False
    words: tuple[str, ...] = ()

    def row(self, row: str) -> str | None:
        """Return the name of the row, or None if the setting does not apply: k-means does not train on views."""
        method = parse_row(row).entry
        if self.fresh and not method.trains:
            return None
        early = [f"+{key}=1" for key in ("teacher_warmup_epochs", "T_warm") if self.fresh and key in method.reads]
        added = "".join([self.added, *early])
        return re.sub(r"(-without-[a-z]|-zero)?$", rf"{added}\1", row, count=1)


WAYS = {
    "protocol": Way(),
    "bf16": Way("+precision=bf16"),
    "fresh": Way("+view_bank=0+epochs=3", fresh=True),
    "processes": Way("+view_bank=0+epochs=3", fresh=True, words=("--set-resources", "train:gpu=2")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="folder of a checkout, including uncommitted changes, or a git revision")
    parser.add_argument("other", nargs="?", default=str(ROOT), help="like base; default: the checkout of this script")
    parser.add_argument("--rows", nargs="+", default=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS), help="default: all")
    arguments = parser.parse_args()
    runs_of: dict[str, list[str]] = {}
    for way in arguments.ways:
        rows = filter(None, map(WAYS[way].row, arguments.rows))
        runs_of[way] = [f"{row}/seed{seed}" for row in rows for seed in arguments.seeds]
    with tempfile.TemporaryDirectory(prefix="ctxgcd-") as temporary:
        folders = [Path(temporary) / side for side in ("base", "other")]
        sides = list(zip((arguments.base, arguments.other), folders, strict=True))
        for checkout, folder in sides:
            copy(checkout, folder)
        for checkout, folder in sides:
            make(checkout, folder, runs_of)
        sys.exit(not compare(runs_of, *folders))


def copy(checkout: str, folder: Path) -> None:
    """Copy the files of a checkout that a run reads. Raises UserError if the folder is not a checkout."""
    source = Path(checkout).expanduser()
    if not source.is_dir():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", checkout, *RUN_FILES], capture_output=True)
        if archive.returncode:
            reason = archive.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise UserError(f"'{checkout}' is neither a folder nor a revision with this project's files ({reason})")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(folder, filter="data")
        return
    if absent := [name for name in RUN_FILES if not (source / name).exists()]:
        raise UserError(f"{checkout} contains no {absent[0]}; give the folder of a checkout of this project")
    folder.mkdir()
    for name in RUN_FILES:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, folder / name)


def make(checkout: str, folder: Path, runs_of: Mapping[str, Sequence[str]]) -> None:
    """Make the runs ROW/seedN of each way and move them to FOLDER/made/WAY. Raises UserError if snakemake fails."""
    for way, runs in runs_of.items():
        if not runs:
            continue
        start = time.monotonic()
        targets = [str(RUNS / run / "run.json") for run in runs]
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *targets, *WAYS[way].words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            print(done.stdout[-4000:], file=sys.stderr)
            raise UserError(
                f"snakemake failed with status {done.returncode} on the runs '{way}' of {checkout}; see above"
            )
        (folder / "made").mkdir(exist_ok=True)
        (folder / RUNS).rename(folder / "made" / way)
        shutil.rmtree(folder / "work/runs")  # otherwise, a run of the same name would be reused
        print(f"{checkout}: {way}, {len(runs)} runs in {time.monotonic() - start:.0f} s", flush=True)


def compare(runs_of: Mapping[str, Sequence[str]], base: Path, other: Path) -> bool:
    """Print one line for each run; return whether all are equal."""
    different = 0
    for way, runs in runs_of.items():
        for run in runs:
            one, two = (content(side / "made" / way / run) for side in (base, other))
            unequal = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
            different += bool(unequal)
            difference = f"DIFFERENT ({len(unequal)} of {len(one.keys() | two.keys())}): {', '.join(unequal)}"
            print(f"{way:10} {run}: {difference if unequal else f'equal ({len(one)})'}")
    total = sum(map(len, runs_of.values()))
    print(f"{different} of {total} runs differ" if different else f"all {total} runs are equal, bit for bit")
    return not different


def content(folder: Path) -> dict[str, Any]:
    """Return the compared content of a run: the tensors of final.pt by name, and assignments.csv."""
    final = torch.load(folder / "final.pt", map_location="cpu", weights_only=True)
    return {
        name: (value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, value in tensors(final)
    } | {"assignments.csv": (folder / "assignments.csv").read_bytes()}


def tensors(part: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Return the tensors in nested dicts by their keys, joined by dots."""
    if isinstance(part, Tensor):
        yield name, part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from tensors(value, f"{name}.{key}" if name else str(key))


if __name__ == "__main__":
    with reported():
        main()
