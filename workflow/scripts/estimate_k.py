"""Estimate the number of classes of a benchmark from its frozen features and the labels of D^l."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.clustering.estimate import estimate_to
from ctxgcd.models.features import load_kept
from ctxgcd.pipeline.code import refuse_changed, script
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True, help="frozen features of the test view, .npy")
    parser.add_argument("--most", type=int, required=True, help="the largest K that is tried")
    parser.add_argument("--restarts", type=int, required=True, help="number of restarts of each k-means")
    parser.add_argument("--seed", type=int, required=True, help="seed of each k-means")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--code", required=True, help="hash of the estimation code")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    a = parser.parse_args()
    refuse_changed(a.code, script("estimate_k"))
    split = read_split(a.split)
    features = load_kept(a.features, (len(split),)).float().numpy()
    how = {"most": a.most, "restarts": a.restarts, "seed": a.seed, "threads": a.threads}
    estimate_to(a.json, a.csv, split, features, code=a.code, **how)


if __name__ == "__main__":
    with reported():
        main()
