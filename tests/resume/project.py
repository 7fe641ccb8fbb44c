"""A small project for tests of interruptions: its demo has few runs of many short epochs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from ctxgcd.training import checkpoint
from tests.helpers.places import PROGRAMS, ROOT

RUN_FILES = ("Snakefile", "params.yaml", "profiles", "workflow", "ctxgcd")
# What a run cost, not its numbers; `together` if its times are a share.
TIMES = ("seconds", "training_seconds", "steps_per_second", "peak_memory_mb", "together")


def fresh_copy(folder: Path, source: Path = ROOT) -> Path:
    """Copy the files of the project that a run reads, outside git."""
    folder.mkdir(parents=True)
    for name in RUN_FILES:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, folder / name)
    return folder


def shrink(folder: Path, rows: Sequence[str] = ("simgcd", "full-paper"), **protocol: Any) -> Path:
    """Reduce the main table of the demo to trained rows of one seed, on the 500 labelled images."""
    file = folder / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params |= {"seeds": [0], "seeds_of": {}, "rows_of": {}}
    params["rows"]["main"] = list(rows)
    params["protocols"]["fashion"] |= {"resize": 32, "crop": 32, "tail": "blocks", **protocol}
    params["benchmarks"]["fashion"]["methods"]["simgcd"]["projector_width"] = 64
    params["benchmarks"]["fashion"]["trial"] = True
    file.write_text(yaml.safe_dump(params, sort_keys=False))
    return folder


def start(folder: Path, *words: str, log: Path | None = None, programs: Path = PROGRAMS) -> subprocess.Popen[bytes]:
    """Start snakemake in a separate process group, as a terminal or a supervisor does."""
    with open(log or folder / "snakemake.log", "ab") as out:
        return subprocess.Popen(
            [str(programs / "snakemake"), *words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(folder: Path, *words: str, programs: Path = PROGRAMS) -> str:
    """Run snakemake and return its output. `programs`: the folder of real or forked programs."""
    log = folder / "finish.log"
    code = start(folder, *words, log=log, programs=programs).wait(timeout=5400)
    assert code == 0, log.read_text()[-4000:]
    return log.read_text()


def processes(folder: Path) -> list[psutil.Process]:
    """Return all processes with the project's folder as working directory, except ended children of this process."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def trainers(folder: Path) -> list[psutil.Process]:
    found = (p for p in processes(folder) if p.name().startswith("python"))
    return [process for process in found if any("scripts/train_" in word for word in process.cmdline())]


def strike(folder: Path, snakemake: subprocess.Popen[bytes], how: str) -> None:
    """Kill -9 (trainer, snakemake, both), or stop by a signal: term, interrupt (snakemake alone), ctrl-c (all)."""
    if how in ("trainer", "both"):
        for trainer in trainers(folder):
            trainer.kill()
    if how in ("snakemake", "both"):
        snakemake.kill()
    if how == "term":
        snakemake.terminate()
    if how == "interrupt":
        snakemake.send_signal(signal.SIGINT)
    if how == "ctrl-c":
        os.killpg(snakemake.pid, signal.SIGINT)


STRIKES = ("trainer", "snakemake", "both", "term", "interrupt", "ctrl-c")


def quiet(folder: Path, patience: float) -> float:
    """Wait until no process works in the folder, and return the seconds. Fails after `patience` seconds."""
    begun = time.monotonic()
    while left := processes(folder):
        assert time.monotonic() - begun < patience, [process.cmdline() for process in left]
        time.sleep(0.1)
    return time.monotonic() - begun


def results(folder: Path) -> dict[str, bytes]:
    """Return every file of results/ by its path, without run times; for a checkpoint, its content."""
    found = {}
    for file in sorted((folder / "results").rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            if file.name in ("run.json", "metrics.json"):
                kept = {key: value for key, value in json.loads(content).items() if key not in TIMES}
                content = json.dumps(kept).encode()
            elif file.name == "final.pt":  # pickles of equal contents may differ after a checkpoint was read
                content = checkpoint.digest(checkpoint.load(file, "ctxgcd-model")).encode()
            found[file.relative_to(folder).as_posix()] = content
    return found
