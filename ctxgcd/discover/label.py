"""Corrections of the results in OUT, shown at once and without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ctxgcd.discover import model as models
from ctxgcd.discover.corrections import Line, replayed, text_of
from ctxgcd.discover.found import Found
from ctxgcd.discover.given import Given
from ctxgcd.discover.output import CORRECTIONS
from ctxgcd.discover.presets import cores
from ctxgcd.discover.results import Results
from ctxgcd.discover.show import Pictures, write_shown
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import left_out, open_packed
from ctxgcd.training.checkpoint import owned
from ctxgcd.utils.files import write_text


def label(given: Given) -> dict[str, Any]:
    """Add corrections to those in OUT and show them; see api.label."""
    results = given.results
    if given.note:
        print(f"note: {given.note}", flush=True)
    with owned(results.output.work):
        now = Results.of(results.out)
        if (now.record, now.lines) != (results.record, results.lines):
            raise UserError(f"{results.out} was changed by another call meanwhile; run the same command again")
        return _shown(results, [*results.lines, *given.lines])


def refreshed(results: Results, folder: str) -> dict[str, Any]:
    """Write the files that show the results again, with the corrections in OUT; return the facts.

    Only the process that owns OUT/work may call it.
    folder: that of the images, relative to OUT.
    """
    return _shown(replace(results, record={**results.record, "folder": folder}), results.lines)


def _shown(results: Results, lines: Sequence[Line]) -> dict[str, Any]:
    results.output.recover()
    found, model, state = Found.load(results.model), models.load(results.model), replayed(results.classes, lines)
    given = results.asked["labels"].keys() - set(found.paths)
    labels = {path: results.asked["labels"][path] for path in model.examples if path in given}
    pictures = _pictures(results, found, list(labels))
    with results.output.changed() as (new, record):
        record["folder"] = results.record["folder"]
        facts: dict[str, Any] = record["facts"]
        if lines:
            write_text(new / CORRECTIONS, text_of(lines))
        write_shown(model, found, results.classes, state, labels, facts, pictures, new)
    return facts


def _pictures(results: Results, found: Found, labelled: Sequence[str]) -> Pictures | None:
    """Return the pictures for the report, packed again if OUT/work was deleted; None without the images.

    labelled: paths of the labelled images that are not in `found`, in the order of their ids.
    """
    relative = results.record["folder"]
    place = results.output.work / results.record["place"]
    store = place.relative_to(results.output.work).parts[0]
    if (whole := results.output.work / store / "images.npz").is_file():
        ids = found.ids.tolist()
        others = sorted(set(range(len(open_packed(whole).offsets))) - set(ids))
        return Pictures(whole, dict(zip([*found.paths, *labelled], [*ids, *others], strict=True)), relative)
    folder = results.photos
    paths = [path for path in (*found.paths, *labelled) if (folder / path).is_file()]
    if not paths:
        print(f"note: report.html is not changed, because the images are not in {folder}", flush=True)
        return None
    packed = results.output.work / "shown" / "images.npz"
    pack("folder", folder, paths, results.asked["resize"], packed, cores(), leave_out=True)
    readable = [path for path in paths if path not in left_out(packed)]
    return Pictures(packed, {path: number for number, path in enumerate(readable)}, relative)
