"""Check the consistency of published rows: All must be the weighted mean of Old and New."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.tables.audit import audit, audit_listing
from ctxgcd.tables.listing import write_listing
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stem", type=Path, required=True, help="path of the outputs without suffix")
    arguments = parser.parse_args()
    rows = audit()
    write_listing(rows, audit_listing(rows), arguments.stem)
    wrong = int((~rows["consistent"]).sum())
    print(f"{wrong} of {len(rows)} published rows are inconsistent ({arguments.stem}.md)")


if __name__ == "__main__":
    with reported():
        main()
