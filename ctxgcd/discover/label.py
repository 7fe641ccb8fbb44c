"""Corrections of the results in OUT, shown at once and without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctxgcd.discover import model as models
from ctxgcd.discover.corrections import Line, State, replayed, text_of
from ctxgcd.discover.found import Found
from ctxgcd.discover.given import Given
from ctxgcd.discover.output import CORRECTIONS
from ctxgcd.discover.presets import cores
from ctxgcd.discover.show import Pictures, write_shown
from ctxgcd.discover.standing import Standing
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import left_out
from ctxgcd.training.checkpoint import owned
from ctxgcd.utils.files import write_text


def label(given: Given) -> dict[str, Any]:
    """Add corrections to those in OUT and show them; see api.label."""
    standing = given.standing
    with owned(standing.output.work):
        now = Standing.of(standing.out)
        if (now.record, now.lines) != (standing.record, standing.lines):
            raise UserError(f"{standing.out} was changed by another call meanwhile; run the same command again")
        return _shown(standing, [*standing.lines, *given.lines])


def refreshed(standing: Standing) -> dict[str, Any]:
    """Write the files that show the results again, with the corrections in OUT; return the facts.

    Only the process that owns OUT/work may call it.
    """
    return _shown(standing, standing.lines)


def _shown(standing: Standing, lines: Sequence[Line]) -> dict[str, Any]:
    standing.output.recover()
    found, state = Found.load(standing.model), replayed(standing.classes, lines)
    pictures = _pictures(standing, found, state)
    with standing.output.changed() as (new, record):
        facts: dict[str, Any] = record["facts"]
        if lines:
            write_text(new / CORRECTIONS, text_of(lines))
        write_shown(models.load(standing.model), found, standing.classes, state, facts, pictures, new)
    return facts


def _pictures(standing: Standing, found: Found, state: State) -> Pictures | None:
    """Return the pictures for the report, packed again if OUT/work was deleted; None without the images."""
    relative = standing.record["folder"]
    place = standing.output.work / standing.record["place"]
    store = place.relative_to(standing.output.work).parts[0]
    if (whole := standing.output.work / store / "images.npz").is_file():
        return Pictures(whole, dict(zip(found.paths, found.ids.tolist(), strict=True)), relative)
    folder = standing.photos
    paths = [path for path in found.paths if (folder / path).is_file()]
    if not paths:
        print(f"note: report.html is not changed, because the images are not in {folder}", flush=True)
        return None
    packed = standing.output.work / "shown" / "images.npz"
    pack("folder", folder, paths, standing.asked["resize"], packed, cores(), leave_out=True)
    readable = [path for path in paths if path not in left_out(packed)]
    return Pictures(packed, {path: number for number, path in enumerate(readable)}, relative)
