"""FGVC-Aircraft (2013b), labelled by variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, present, read_lines, read_pairs, require
from ctxgcd.errors import UserError

CLASSES = 100
TRAIN, TEST = "data/images_variant_trainval.txt", "data/images_variant_test.txt"
VARIANTS = "data/variants.txt"


@dataclass(frozen=True, kw_only=True)
class Aircraft(Reader):
    """The canonical order is that of the list files; class ids follow the sorted names of variants."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        lines = read_lines(folder / VARIANTS)
        # The file groups the names by manufacturer; the published loaders sort them.
        names = sorted({line.strip() for line in lines if line.strip()})
        if len(names) != CLASSES:
            raise UserError(f"{folder / VARIANTS} has {len(names)} variants, but expected {CLASSES}; replace it")
        index = {name: class_id for class_id, name in enumerate(names)}
        paths: list[str] = []
        variants: list[str] = []
        parts: list[str] = []
        for part, part_file in (("train", TRAIN), ("test", TEST)):
            for file in present(folder, [part_file]):
                pairs = read_pairs(file)
                if unknown := [name for _, name in pairs if name not in index]:
                    raise UserError(
                        f"{file} has the variant {unknown[0]!r}, which is missing in {VARIANTS}; replace both"
                    )
                paths += [f"data/images/{key}.jpg" for key, _ in pairs]
                variants += [name for _, name in pairs]
                parts += [part] * len(pairs)
        return as_manifest(paths, [index[name] for name in variants], variants, parts)

    def list_files(self, folder: Path) -> list[Path]:
        return present(folder, (TRAIN, VARIANTS, TEST))


AIRCRAFT = Aircraft(
    files=(TRAIN, VARIANTS, "data/images"),
    test_files=(TEST,),
    how_to_get=(
        "`snakemake fetch_aircraft` (no account); manually: extract https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/"
        "fgvc-aircraft-2013b.tar.gz and move its data/ into this folder"
    ),
    drawn_order=False,
    gigabytes=2.8,
)
