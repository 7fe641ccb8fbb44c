"""Predictions in the formats of other programs: JSON for FiftyOne, and keywords in XMP sidecar files."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import escape

from ctxgcd.errors import UserError, shown
from ctxgcd.names import counted
from ctxgcd.utils.files import require_writable, write_text
from ctxgcd.utils.user_tables import CLASS, GUESS, NAME, PATH, Table, listed, read_table

FORMATS = ("fiftyone", "xmp")
# A packet of the XMP specification with the class in dc:subject, which photo managers show as a keyword.
XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject><rdf:Bag><rdf:li>{name}</rdf:li></rdf:Bag></dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def convert(predictions: Path, out: Path, to: str) -> int:
    """Write the predictions in another format and return the number of images; see api.convert."""
    if to not in FORMATS:
        raise UserError(f"unknown format {to!r}; give {' or '.join(FORMATS)}")
    names = _names(predictions)
    if to == "fiftyone":
        _write_fiftyone(names, out)
    else:
        _write_sidecars(names, out)
    return len(names)


def _names(predictions: Path) -> dict[str, str]:
    """Return path -> name of the class, without images that are none of these classes."""
    table = read_table(predictions, "path,name")
    if table.has("action"):
        raise UserError(f"{predictions} is a corrections.csv; give the predictions of discover or predict")
    paths, name = table.column(*PATH), table.column(NAME, *GUESS, *CLASS)
    rows = table.rows
    if table.has("none_of_these"):
        rows = rows[rows["none_of_these"] != "1"]
    rows = Table(table.name, rows).filled(paths, name).once(paths).rows
    names = dict(zip(rows[paths], rows[name], strict=True))
    if not names:
        raise UserError(f"{predictions} has no image with a class; give the predictions of discover or predict")
    if away := [path for path in names if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts]:
        raise UserError(
            f"{predictions} has paths that are not in the folder of the images: {listed(away)}; write relative paths"
        )
    return names


def _write_fiftyone(names: dict[str, str], out: Path) -> None:
    """Write labels.json of FiftyOneImageClassificationDataset: classes, and a label for each path without suffix."""
    if out.exists():
        raise UserError(f"{out} exists; give a new file")
    require_writable(out)
    keys = {path: str(PurePosixPath(path).with_suffix("")) for path in names}
    number = Counter(keys.values())
    if same := [path for path, key in keys.items() if number[key] > 1]:
        raise UserError(
            f"FiftyOne identifies images without their suffix, so it cannot tell these apart: {listed(same)}; rename "
            "one of them and predict again"
        )
    content = {"classes": None, "labels": {keys[path]: name for path, name in names.items()}}
    write_text(out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _write_sidecars(names: dict[str, str], folder: Path) -> None:
    """Write FOLDER/PATH.xmp for each image. Raises UserError, before any is written, if another one exists.

    Those of an interrupted call are kept.
    """
    files = {folder / f"{path}.xmp": XMP.format(name=escape(shown(name))) for path, name in names.items()}
    if there := [str(file.relative_to(folder)) for file, text in files.items() if _is_other(file, text)]:
        raise UserError(
            f"{folder} has sidecar files already, which are not overwritten: {counted(len(there), 'file')}, such as "
            f"{shown(there[0])}; give another folder"
        )
    require_writable(max(files, key=lambda file: len(file.name.encode())))
    for file, text in files.items():
        write_text(file, text)


def _is_other(file: Path, text: str) -> bool:
    """Return whether a file exists that is not a regular one with this text."""
    return os.path.lexists(file) and (file.is_symlink() or not file.is_file() or file.read_bytes() != text.encode())
