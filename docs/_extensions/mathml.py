"""Formulas as MathML, which browsers display without scripts and without a network."""

from __future__ import annotations

from typing import Any, NoReturn

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.math import get_node_equation_number


def inline(writer: Any, node: nodes.math) -> NoReturn:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def displayed(writer: Any, node: nodes.math_block) -> NoReturn:
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate"))
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    if node["number"]:
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})</span>')
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.connect("config-inited", lambda _, config: setattr(config, "html_math_renderer", "mathml"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
