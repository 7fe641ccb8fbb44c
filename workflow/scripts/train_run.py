"""Train one run of any method; an interrupted run resumes after its last finished epoch."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.pipeline import run_cache
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.rank import count_of, is_child_process
from ctxgcd.utils.files import read_object
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.signals import stop_after

FILES = ("store", "weights", "test_view", "view_bank", "estimate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=json.loads, required=True, help="the run's resolved parameters as JSON")
    parser.add_argument("--code", required=True, help="hash of the code of this run")
    parser.add_argument("--reader", required=True, help="the benchmark's reader, which opens the images")
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--split-hash", type=Path, required=True)
    for name in FILES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    parser.add_argument("--devices", default="1", help="number of processes that share the work, one per device")
    parser.add_argument("--minutes", type=float, help="time limit, after which the run ends as after SIGTERM")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--work", type=Path, required=True, help="folder of resume states")
    arguments = parser.parse_args()
    count = count_of(arguments.devices)
    files = {name: path for name in FILES if (path := getattr(arguments, name))}
    own = {name: getattr(arguments, name) for name in ("split_hash", "code", "reader", "work")}
    one = OneRun.of(arguments.parameters, files=files, **own)
    first = not is_child_process()
    if first and arguments.minutes:
        stop_after(arguments.minutes)
    if not (first and one.give(arguments.out)):
        _train(one, arguments.split, count, first, arguments.out)


def _train(one: OneRun, split: Path, count: int, first: bool, out: Path) -> None:
    # Imported here, because these imports take seconds, and a finished run needs none of them.
    from ctxgcd.benchmarks.split_file import read_split
    from ctxgcd.training.checkpoint import owned
    from ctxgcd.training.devices import borrowed_devices
    from ctxgcd.training.processes import started
    from ctxgcd.training.term_sizes import summary

    count = count if METHODS[one.parameters["method"]].trains else 1
    with owned(one.state, patience=None) if first else nullcontext():
        if first and one.give(out):  # another process has finished it meanwhile
            return
        with borrowed_devices(count) as held, started(held) as (processes, device):
            one.train(read_split(split), device, processes)
        if first:
            run_cache.give(one.state, out)
            made = read_object(out / "run.json", "shares", "active_from")
            if made["shares"]:
                print(summary(made), flush=True)


if __name__ == "__main__":
    with reported():
        main()
