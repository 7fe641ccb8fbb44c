"""Write the state of every published row: reproduced, planned or not supported, from the existing runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.pipeline.jobs import read_params
from ctxgcd.pipeline.tables import existing_metrics, planned_rows
from ctxgcd.tables.listing import write_listing
from ctxgcd.tables.published import PAPER_KEYS
from ctxgcd.tables.status import status, status_listing
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="params.yaml with the changes of the command line")
    parser.add_argument("--stem", type=Path, required=True, help="path of the outputs without suffix")
    arguments = parser.parse_args()
    params = read_params(arguments.params)
    planned = planned_rows(params)
    frame = status(planned, existing_metrics(params, planned), PAPER_KEYS.values())
    listing = status_listing(frame)
    write_listing(frame, listing, arguments.stem)
    print(f"{listing.title}; see {arguments.stem}.md")


if __name__ == "__main__":
    with reported():
        main()
