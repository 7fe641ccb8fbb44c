"""Say for every published row whether it is reproduced, only planned or not possible, from the runs that exist."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.config import parse
from ctxgcd.errors import reported
from ctxgcd.tables.listing import write_listing
from ctxgcd.tables.published import KEYS
from ctxgcd.tables.status import status, status_listing
from ctxgcd.targets import existing_metrics, planned_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="the whole of params.yaml as JSON")
    parser.add_argument("--stem", type=Path, required=True, help="path of the outputs without suffix")
    arguments = parser.parse_args()
    params = parse(arguments.config)
    planned = planned_rows(params)
    frame = status(planned, existing_metrics(params, planned), KEYS.values())
    listing = status_listing(frame)
    write_listing(frame, listing, arguments.stem)
    print(f"{listing.title}; see {arguments.stem}.md")


if __name__ == "__main__":
    with reported():
        main()
