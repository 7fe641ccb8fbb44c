"""Score a run's assignments against the true classes."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.evaluation.score_run import score_run
from ctxgcd.pipeline.code import refuse_changed, script
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--assignments", type=Path, nargs="+", required=True, help="one file, or one per process")
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--code", required=True, help="hash of the scoring code")
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--test-predictions", type=Path, required=True)
    arguments = parser.parse_args()
    refuse_changed(arguments.code, script("score_run"))
    outputs = {"unlabelled": arguments.predictions, "test": arguments.test_predictions}
    split = read_split(arguments.split)
    score_run(arguments.run, arguments.assignments, split, arguments.metrics, outputs, code=arguments.code)


if __name__ == "__main__":
    with reported():
        main()
