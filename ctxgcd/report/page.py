"""A self-contained HTML page with styles, script and images."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ctxgcd.report.all_images import AllImages
from ctxgcd.tables.escapes import as_html
from ctxgcd.utils.files import write_text

TEMPLATES = Path(__file__).parent / "templates"


class Block(Protocol):
    """A block of a section; `kind` is the macro of blocks.html.j2 that renders it."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Notes:
    """Short texts, one per line."""

    kind: ClassVar[str] = "notes"
    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, with a caption."""

    kind: ClassVar[str] = "figure"
    uri: str
    caption: str
    pixelated: bool = False  # each pixel is a value: enlarge without smoothing


@dataclass(frozen=True)
class Section:
    """A heading with blocks and subsections; a folded section opens on a click."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = field(default=())
    folded: bool = False


def write_page(
    title: str, lead: str, sections: Sequence[Section], out: Path, all_images: AllImages | None = None
) -> None:
    """Write the page atomically, with all texts escaped; its Content-Security-Policy blocks external resources.

    all_images: the images of the blocks `cards` and `image_list`; their files may be shown, enlarged.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {}  # keep the order of keys, which the page shows
    environment.filters["symbols"] = lambda text: Markup(as_html(text))  # escapes; L_n gets a subscript
    parts = ["page", *["all_images"] * bool(all_images)]
    # Browsers normalise line ends to one character before they compute the hash of a script.
    style, script = (
        Markup("".join((TEMPLATES / f"{part}.{kind}").read_text(encoding="utf-8") for part in parts))
        for kind in ("css", "js")
    )
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.get_template("page.html.j2")
    content = {"title": title, "lead": lead, "sections": sections, "style": style, "script": script}
    write_text(out, template.render(**content, script_hash=script_hash, all_images=all_images))


def png(path: Path, caption: str) -> Figure:
    """Return a PNG file as a figure of the page."""
    return Figure(f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}", caption)
