"""List the images that are equal or nearly equal in two of D^l, D^u and the test part."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.images.duplicates import counts, find, thumbnails
from ctxgcd.images.store import open_store
from ctxgcd.names import ROLES
from ctxgcd.utils.files import replacing
from ctxgcd.utils.reporting import reported

COLUMNS = ["kind", "difference", "id", "path", "role", "other_id", "other_path", "other_role"]
ROLE_NAMES = {"labelled": "D^l", "unlabelled": "D^u", "test": "the test part"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    split = read_split(arguments.split).sort_values("id", ignore_index=True)
    groups = split["role"].map(ROLES.index).to_numpy("int64")
    store = open_store(arguments.store)
    pairs = find(store, thumbnails(store), groups)
    for end, prefix in (("first", ""), ("second", "other_")):
        pairs = pairs.join(split[["id", "path", "role"]].add_prefix(prefix), on=end)
    with replacing(arguments.out) as temporary:
        pairs[COLUMNS].to_csv(temporary, index=False, lineterminator="\n")
    found = counts(pairs, groups)
    for (a, b), number in found.items():
        said = f"{number['equal']} images of {ROLE_NAMES[ROLES[b]]} are equal, {number['near']} nearly equal"
        print(f"{said} to one of {ROLE_NAMES[ROLES[a]]} (listed in {arguments.out})")
    if not found:
        print("no image of D^l, D^u and the test part is equal or nearly equal to one of another part")


if __name__ == "__main__":
    with reported():
        main()
