"""Measure what corrections of a discovery gain: a folder of photographs is discovered, corrected and continued.

    python workflow/scripts/measure_corrections.py data/raw/cub50/CUB_200_2011/images work/corrections --publish

The photographs of all species lie in one folder, with numbers as names; half of those of the Old species of CUB have a
label. The 50 photographs with the lowest confidence are corrected by their true species, two classes are named, two
classes of one species are merged, and the discovery continues; once more without the 50 photographs, and once more
without any correction, which shows what the longer training gains alone. Prints a table, and with --publish writes it
to docs/measured/corrections.csv and docs/discover.md. An interrupted call resumes.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from publish_results import OUT, show_in

from ctxgcd import api
from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.readers.own_images import images_below
from ctxgcd.discover.checks import continued_request
from ctxgcd.discover.corrections import Line, text_of
from ctxgcd.discover.discovery import discover
from ctxgcd.discover.results import Results
from ctxgcd.discover.sentences import chance
from ctxgcd.evaluation.accuracy import v2
from ctxgcd.training.provenance import commit, environment
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

CORRECTED, NAMED = 50, 2
PAGE = Path("docs/discover.md")
ROWS = {
    "found": "discovered",
    "labelled": "corrected, without training",
    "continued": "continued",
    "merged": "continued with the names and the merged pair alone",
    "control": "continued without any correction",
}


def flat(photos: Path, folder: Path) -> pd.DataFrame:
    """Link all photographs into one folder; return path, species, old, labelled."""
    given = np.random.RandomState(0).permutation(images_below(photos))
    table = pd.DataFrame({"path": [f"{number:04}.jpg" for number in range(len(given))]})
    table["species"] = [Path(path).parts[0] for path in given]
    old = set(load("cub").old)
    table["old"] = [int(species.partition(".")[0]) - 1 in old for species in table.species]
    table["labelled"] = table.old & (table.groupby("species").cumcount() % 2 == 0)
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in zip(table.path, given, strict=True):
        if not (folder / path).is_symlink():
            (folder / path).symlink_to((photos / source).resolve())
    return table


def corrections(table: pd.DataFrame) -> tuple[list[Line], list[Line]]:
    """Return the lines that a person would write: of classes, and of photographs; table: of `predicted`."""
    sizes = table[table.number != ""].groupby(["number", "species"]).size()
    most = sizes.sort_values(ascending=False, kind="stable").reset_index().drop_duplicates("number")
    numbers = {str(species): list(of) for species, of in most.groupby("species", sort=False)["number"]}
    lines = [Line("name", cls=of[0], target=species) for species, of in islice(numbers.items(), NAMED)]
    pairs = (of[:2] for of in numbers.values() if len(of) > 1)
    lines += [Line("merge", cls=smaller, target=larger) for larger, smaller in islice(pairs, 1)]
    photos = []
    least = table.sort_values("confidence", kind="stable").head(CORRECTED)
    for path, species, old, name, number in least[["path", "species", "old", "name", "number"]].itertuples(index=False):
        target = species if old else numbers.get(species, [species])[0]
        if target in (name, number):
            photos.append(Line("confirm", image=path, cls=target))
        else:
            photos.append(Line("move", image=path, target=target))
    return lines, photos


def predicted(out: Path, truth: pd.DataFrame) -> pd.DataFrame:
    """Return predictions.csv with the true species and whether it is Old."""
    table = pd.read_csv(out / "predictions.csv", keep_default_na=False, dtype={"name": str, "number": str})
    return table.merge(truth[["path", "species", "old"]], on="path", validate="one_to_one")


def scores(table: pd.DataFrame, without: Collection[str]) -> dict[str, float | int | None]:
    """Return the accuracy on all photographs in predictions.csv, and on those that were not corrected."""
    found: dict[str, float | int | None] = {"classes": int(table["class"].nunique())}
    for name, own in (("every", table), ("others", table[~table.path.isin(without)])):
        score = v2(own["class"].to_numpy(), own.species.factorize()[0], own.old.to_numpy())
        found |= {f"{name}_n": len(own), f"{name}_all": score.all, f"{name}_old": score.old, f"{name}_new": score.new}
    return found


def copied(out: Path, to: Path) -> Path:
    """Return a copy of results, which is made once."""
    if not to.exists():
        shutil.rmtree(part := to.with_suffix(".part"), ignore_errors=True)
        shutil.copytree(out, part).rename(to)
    return to


def corrected(out: Path, lines: Sequence[Line], to: Path) -> Path:
    """Return a copy of results with corrections, which are added once."""
    if not (copied(out, to) / "corrections.csv").exists():
        write_text(to.with_suffix(".csv"), text_of(lines))
        api.label(to, to.with_suffix(".csv"))
    return to


def continued(out: Path, folder: Path) -> Path:
    """Continue results without corrections once, and return them; `ctxgcd discover` does nothing there."""
    if not (results := Results.of(out)).continues:
        request = continued_request(results, folder, None, None, {})
        assert request.continued
        discover(replace(request, continued=replace(request.continued, unchanged=False)))
    return out


def text(rows: Mapping[str, Mapping[str, Any]], moved: int) -> str:
    """Return the sentences and the table for the page; rows: a row of the table by the key of ROWS."""

    def cell(row: str, name: str) -> str:
        return " / ".join(f"{rows[row][f'{name}_{kind}']:.1f}" for kind in ("all", "old", "new"))

    def gain(row: str, name: str) -> str:
        return f"{rows[row][f'{name}_all'] - rows['found'][f'{name}_all']:+.1f}"

    def added(name: str) -> float:
        return rows["continued"][f"{name}_all"] - rows["control"][f"{name}_all"]

    first = rows["found"]
    limit = chance([rows[row]["others_all"] for row in ("continued", "control")], first["others_n"])
    seen = "no effect of" if abs(added("others")) <= limit else "a gain by" if added("others") > 0 else "a loss by"
    every, others = f"{first['every_n']:,}", f"{first['others_n']:,}"
    lines = [
        f"{every} unlabelled photographs; the {CORRECTED} with the lowest confidence were corrected by their true "
        f"species ({moved} moved, {CORRECTED - moved} confirmed), {NAMED} classes named and one pair merged. "
        "Clustering accuracy (v2, percent), All / Old / New, one seed. All changes by "
        f"{gain('continued', 'every')} points, and on the {others} photographs that were not corrected by "
        f"{gain('continued', 'others')}; continued with the names and the merged pair alone, by "
        f"{gain('merged', 'others')} there. Continued without any correction, which trains for as long, they change "
        f"by {gain('control', 'every')} and {gain('control', 'others')}. So the longer training gains that much "
        f"alone; the corrections add {added('every'):+.1f} points on all photographs and {added('others'):+.1f} on "
        f"those that were not corrected. Differences up to about {limit} points may be chance: {seen} the corrections "
        "on the other photographs is seen.",
        "",
        f"| | classes | all {every} | the {others} that were not corrected |",
        "|---|--:|--:|--:|",
        *(
            f"| {title} | {rows[row]['classes']} | {cell(row, 'every')} | {cell(row, 'others')} |"
            for row, title in ROWS.items()
        ),
        "",
        "Measured by `workflow/scripts/measure_corrections.py` (all figures: `docs/measured/corrections.csv`): commit "
        f"{first['commit'][:7]}, {first['device']}, torch {first['torch']}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder with one folder of photographs for each species")
    parser.add_argument("out", type=Path, help="a new folder, or the folder of the call to resume")
    parser.add_argument("--size", type=int, help="side of the views in pixels; default: that of the preset")
    parser.add_argument("--publish", action="store_true", help="write the table to docs/")
    arguments = parser.parse_args()
    out, folder = arguments.out, arguments.out / "photos"
    truth = flat(arguments.photos, folder)
    labels = truth.loc[truth.labelled, ["path", "species"]].set_axis(["path", "class"], axis="columns")
    write_text(out / "labels.csv", labels.to_csv(index=False))
    found = out / "found"
    api.discover(folder, out / "labels.csv", found, classes=truth.species.nunique(), size=arguments.size)
    of_classes, of_photos = corrections(predicted(found, truth))
    labelled = corrected(found, [*of_classes, *of_photos], out / "labelled")
    places = {
        "found": found,
        "labelled": labelled,
        "continued": copied(labelled, out / "continued"),
        "merged": corrected(found, of_classes, out / "merged"),
    }
    for again in ("continued", "merged"):
        api.discover(folder, None, places[again])
    places["control"] = continued(copied(found, out / "control"), folder)
    versions = environment(torch.device("cpu")) | {"commit": commit()}
    without = {line.image for line in of_photos}
    rows = {row: scores(predicted(place, truth), without) | versions for row, place in places.items()}
    moved = sum(line.action == "move" for line in of_photos)
    print(text(rows, moved))
    if arguments.publish:
        made = pd.DataFrame(rows.values(), index=pd.Index(rows, name="row"))
        made.to_csv(OUT / "corrections.csv", lineterminator="\n")
        show_in(PAGE, "corrections", text(rows, moved))


if __name__ == "__main__":
    with reported():
        main()
