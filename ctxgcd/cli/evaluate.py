"""`ctxgcd evaluate`: scores predictions of any code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, note, print_json, print_table
from ctxgcd.errors import shown
from ctxgcd.names import SETS

TITLES = {"nmi": "NMI", "ari": "ARI"}
NOTHING = "-"
SHOWN = 10  # clusters in the line of sizes


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "evaluate",
        "score the predictions of any code against the true classes",
        "Score predictions, of this or any other code, against the true classes: clustering accuracy v2 (one "
        "assignment of clusters to classes), v2b (mean over classes), v1 (separate assignments for Old and New: "
        "optimistic), NMI, ARI and purity, in percent. Tables are CSV files separated by comma, semicolon or tab, with "
        "rows in any order.",
        [
            "ctxgcd evaluate predictions.csv truth.csv",
            "ctxgcd evaluate predictions.csv truth.csv --old daisy --old iris --clusters 12",
            "ctxgcd evaluate results/runs/fashion/simgcd/seed0/predictions.csv results/splits/fashion.csv --json",
        ],
    )
    parser.add_file(
        "predictions", type=Path, help="CSV with path or id of each image, and predicted (or class): any text or number"
    )
    parser.add_file(
        "truth",
        type=Path,
        help="CSV with path or id, class (or class_id, true_class, class_name) and optionally old (0 or 1), such as "
        "results/splits/NAME.csv",
    )
    parser.add_file(
        "--old",
        action="append",
        metavar="FILE_OR_CLASS",
        help="Old classes, if the truth has no column old: a file with one class per line, or a class; can be repeated",
    )
    parser.add_argument(
        "--set", choices=SETS, help="images to score if the truth has a column role: unlabelled (default) or test"
    )
    parser.add_argument("--clusters", type=int, metavar="K", help="the assumed number of clusters, to count empty ones")
    parser.add_argument("--join-by", choices=("path", "id"), help="default: path if both tables have it, else id")
    parser.add_argument("--allow-missing", action="store_true", help="score only the images that have a prediction")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    scored = api.evaluate(
        arguments.predictions,
        arguments.truth,
        old=arguments.old,
        set=arguments.set,
        clusters=arguments.clusters,
        join_by=arguments.join_by,
        allow_missing=arguments.allow_missing,
    )
    for text in scored["notes"]:
        note(text)
    if arguments.json:
        print_json(scored)
        return
    sides = ("all", "old", "new")
    rows = [
        (TITLES.get(row["metric"], row["metric"]), *(_percent(row[side]) for side in sides)) for row in scored["scores"]
    ]
    print_table(("percent", "All", "Old", "New"), rows, numbers=True)
    print()
    for name, fact in _facts(scored):
        print(f"{name:<15} {fact}")


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _facts(scored: dict[str, Any]) -> list[tuple[str, str]]:
    of_set = f" of the set {scored['set']}" if scored["set"] else ""
    old = "" if scored["old_classes"] is None else f", {scored['old_classes']} of them Old"
    share = "" if scored["old_share"] is None else f", {scored['old_share']:.1f}% of Old classes"
    sizes = sorted(scored["histogram"].items(), key=lambda item: -item[1])
    largest = ", ".join(f"{shown(label)}: {size}" for label, size in sizes[:SHOWN])
    empty = scored["empty_clusters"]
    return [
        ("images", f"{scored['n']:,}{of_set}{share}"),
        ("true classes", f"{scored['classes']}{old}"),
        ("clusters found", str(scored["clusters_found"])),
        ("empty clusters", "unknown without --clusters K" if empty is None else f"{empty} of {scored['clusters']}"),
        ("largest", largest + (", ..." if len(sizes) > SHOWN else "")),
    ]
