"""Train several runs of one benchmark and seed in one job and keep them in the run cache."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.names import counted
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.rank import count_of, is_child_process
from ctxgcd.utils.files import undamaged
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.signals import stop_after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="JSON file: parameters, code and files of each run")
    parser.add_argument("--reader", required=True, help="the benchmark's reader, which opens the images")
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--split-hash", type=Path, required=True)
    parser.add_argument("--devices", default="1", help="number of processes that share the work, one per device")
    parser.add_argument("--minutes", type=float, help="time limit, after which the job ends as after SIGTERM")
    parser.add_argument("--work", type=Path, required=True, help="the run cache")
    arguments = parser.parse_args()
    count, first = count_of(arguments.devices), not is_child_process()
    if first and arguments.minutes:
        stop_after(arguments.minutes)
    own = {name: getattr(arguments, name) for name in ("split_hash", "reader", "work")}
    with undamaged(arguments.runs):
        asked = json.loads(arguments.runs.read_text(encoding="utf-8"))
    runs = [
        OneRun.of(
            run["parameters"],
            files={name: Path(file) for name, file in run["files"].items()},
            code=run["code"],
            **own,
        )
        for run in asked
    ]
    lacking = [place for place, one in enumerate(runs) if first and not one.finished()]
    if lacking or not first:
        _train(runs, lacking, arguments.split, count)


def _train(runs: Sequence[OneRun], lacking: Sequence[int], split: Path, count: int) -> None:
    """Train the runs at the places `lacking` of the first process."""
    # Imported here, because these imports take seconds, and finished runs need none of them.
    from ctxgcd.benchmarks.split_file import read_split
    from ctxgcd.training.devices import borrowed_devices
    from ctxgcd.training.processes import started
    from ctxgcd.training.shared import train_together

    count = count if any(METHODS[one.parameters["method"]].trains for one in runs) else 1
    with borrowed_devices(count) as held, started(held) as (processes, device):
        wanted = [runs[place] for place in processes.from_first(lacking)]
        failed = train_together(wanted, read_split(split), device, processes)
    if failed:
        of = "{benchmark}, seed {seed},".format(**runs[0].parameters)
        raise UserError(f"{counted(len(failed), 'run')} of {of} failed: {', '.join(failed)}; finished runs are kept")


if __name__ == "__main__":
    with reported():
        main()
