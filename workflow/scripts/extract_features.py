"""Extract the outputs of the frozen trunk for the test view or for a bank of train views."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import torch

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.models.backbone import cut
from ctxgcd.models.features import extract_test_view, extract_view_bank, finish_test_view
from ctxgcd.pipeline import code
from ctxgcd.pipeline.paths import Features
from ctxgcd.pipeline.possible import check_requested
from ctxgcd.training.devices import borrowed_devices
from ctxgcd.training.load import load_backbone, open_cropper
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", type=Features.of, required=True, help="name of cached features (pipeline/paths.py)")
    parser.add_argument("--parameters", type=json.loads, required=True, help="model, crop, mean and std as JSON")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument(
        "--tail-input", type=Path, nargs="?", help="cached tail input from which frozen features are made"
    )
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--code", required=True, help="hash of the code, contained in the file name")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    code.refuse_changed(arguments.code, code.features())
    torch.set_num_threads(arguments.threads)
    of: Features = arguments.kind
    cached: Path | None = arguments.tail_input
    split = read_split(arguments.split)
    check_requested(arguments.split.stem, split)
    images = int((split.part == "train").sum())
    with borrowed_devices(1) as [device]:
        cropper = open_cropper(arguments.parameters, arguments.store, device)
        of_protocol = partial(cut, tail_blocks=Features.of(cached.stem).tail if cached else of.tail)
        backbone = load_backbone(arguments.parameters, of_protocol, of.precision, arguments.weights, device)
        if cached:
            finish_test_view(backbone.tail, cached, cropper, of.precision, arguments.out)
        elif of.views:
            extract_view_bank(backbone, cropper, images, of.views, of.seed, of.precision, arguments.out)
        else:
            extract_test_view(backbone, cropper, of.precision, arguments.out)


if __name__ == "__main__":
    with reported():
        main()
