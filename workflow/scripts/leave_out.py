"""Write the class list of `cub50_unequal`: the first 50 classes of CUB, with images of most classes left out."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from ctxgcd.benchmarks.class_lists import FOLDER, load
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

SEED, RATIO = 0, 8  # the largest class keeps all of its images, the smallest one of RATIO


def left_out(manifest: pd.DataFrame, seed: int = SEED) -> list[str]:
    """Return the paths to leave out: class i of n in a random order keeps RATIO**(-i / (n - 1)) of each part."""
    random, paths = np.random.RandomState(seed), []
    classes = random.permutation(sorted(set(manifest["class_id"])))
    for place, raw in enumerate(classes):
        for part in ("train", "test"):
            own = manifest.loc[(manifest["class_id"] == raw) & (manifest["part"] == part), "path"].to_numpy()
            kept = round(len(own) * RATIO ** (-place / (len(classes) - 1)))
            paths += own[random.permutation(len(own))[kept:]].tolist()
    return sorted(paths)


def main() -> None:
    of = load("cub", 50)
    content = {
        "name": "cub50_unequal",
        "source": f"{of.source} First 50; workflow/scripts/leave_out.py drew the images left out (seed {SEED}).",
        "classes": of.classes,
        "old": of.old,
        "new": of.new,
        "names": of.names,
        "left_out": left_out(reader_of({"reader": "cub"}).manifest(folder_of("cub50"))),
    }
    write_text(FOLDER / "cub50_unequal.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    with reported():
        main()
