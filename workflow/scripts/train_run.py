"""Train one run of any method; an interrupted run resumes after its last finished epoch."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.methods.build import method_of
from ctxgcd.pipeline import run_cache
from ctxgcd.pipeline.code import refuse_changed
from ctxgcd.pipeline.code import run as run_code
from ctxgcd.pipeline.identity import identity, read_estimate
from ctxgcd.pipeline.possible import check_k, check_possible
from ctxgcd.pipeline.run_cache import kept
from ctxgcd.training.checkpoint import owned
from ctxgcd.training.devices import borrowed_devices
from ctxgcd.training.processes import is_child_process, started
from ctxgcd.training.term_sizes import summary
from ctxgcd.training.train import run
from ctxgcd.utils.files import read_object
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.signals import stop_after

KEPT = ("store", "weights", "test_view", "view_bank")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=json.loads, required=True, help="the run's resolved parameters as JSON")
    parser.add_argument("--code", required=True, help="hash of the code of this run")
    parser.add_argument("--reader", required=True, help="the benchmark's reader, which opens the images")
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--split-hash", type=Path, required=True)
    for name in KEPT:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    parser.add_argument("--estimate", type=Path, help="file with the estimated K, if the run uses it")
    parser.add_argument("--devices", default="1", help="number of processes that share the work, one per device")
    parser.add_argument("--minutes", type=float, help="time limit, after which the run ends as after SIGTERM")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--work", type=Path, required=True, help="folder of resume states")
    arguments = parser.parse_args()
    if not arguments.devices.isdecimal() or arguments.devices == "0":
        raise UserError(
            f"the resource gpu of this training is {arguments.devices}; give the number of processes, at least 1 (one "
            "per GPU, or on a CPU)"
        )
    parameters, split = arguments.parameters, read_split(arguments.split)
    if arguments.estimate:
        parameters["K"] = read_estimate(arguments.estimate)
    check_possible(parameters, int((split.part == "train").sum()))
    check_k(parameters, split)
    split_hash = arguments.split_hash.read_text(encoding="utf-8").strip()
    code = run_code(arguments.reader, parameters["method"], parameters.get("modifiers", ()))
    refuse_changed(arguments.code, code)
    own = identity(parameters, split_hash, arguments.code)
    files = {name: path for name in KEPT if (path := getattr(arguments, name))}
    state = run_cache.folder_of(arguments.work, own, parameters["row"])
    count = int(arguments.devices) if METHODS[parameters["method"]].trains else 1
    first = not is_child_process()
    if first and arguments.minutes:
        stop_after(arguments.minutes)
    with owned(state) if first else nullcontext():
        found = kept(arguments.work, parameters, split_hash, arguments.code) if first else None
        if found and run_cache.give(found, arguments.out):
            by = "" if found == state else " by equal code"
            print(f"this run is already finished{by}; copied from {found}", flush=True)
            return
        with borrowed_devices(count) as devices, started(devices) as (processes, device):
            run(
                parameters,
                method=method_of(parameters),
                split=split,
                files=files,
                state=state,
                device=device,
                processes=processes,
                about={"identity": own, "split_sha256": split_hash, "code": arguments.code},
                provenance={"true_code": code.true_hash, "modules": code.modules},
            )
        if first:
            run_cache.give(state, arguments.out)
            made = read_object(arguments.out / "run.json", "shares", "active_from")
            if made["shares"]:
                print(summary(made), flush=True)


if __name__ == "__main__":
    with reported():
        main()
