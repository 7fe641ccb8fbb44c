"""Renders tables as Markdown, LaTeX (booktabs) and HTML, each from a template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ctxgcd.tables.escapes import as_html, as_latex, as_markdown
from ctxgcd.tables.layout import Kind, wide_table
from ctxgcd.utils.files import write_text

Format = Literal["md", "tex", "html"]
ESCAPES: dict[Format, Callable[[object], str]] = {"md": as_markdown, "tex": as_latex, "html": as_html}

# Jinja's default braces conflict with TeX groups.
LATEX_DELIMITERS: dict[str, Any] = {
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
}


def rendered(template: str, suffix: Format, **content: Any) -> str:
    """Render a template of a format, with all texts escaped for this format."""
    escape = ESCAPES[suffix]
    delimiters = LATEX_DELIMITERS if suffix == "tex" else {}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        finalize=escape,
        autoescape=False,  # finalize escapes every expression instead, in LaTeX and Markdown too
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **delimiters,
    )
    return environment.get_template(f"{template}.{suffix}.j2").render(**content)


def write_table(long: pd.DataFrame, out_stem: Path, *, title: str, note: str, kind: Kind) -> None:
    """Write STEM.csv (long, full precision) and STEM.md, .tex and .html (wide), each atomically."""
    table = wide_table(long, title=title, note=note, kind=kind, label=out_stem.name)
    out_stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {"csv": long.to_csv(index=False)} | {suffix: rendered("table", suffix, table=table) for suffix in ESCAPES}
    for suffix, text in texts.items():
        write_text(out_stem.with_name(f"{out_stem.name}.{suffix}"), text)
