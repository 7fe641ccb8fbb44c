"""Print the runs that the configured tables need and what they cost, without any data."""

from __future__ import annotations

import argparse
import json

from ctxgcd.config import parse
from ctxgcd.errors import reported
from ctxgcd.plan import plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="the configuration as JSON")
    arguments = parser.parse_args()
    print(plan(parse(arguments.config)))


if __name__ == "__main__":
    with reported():
        main()
