"""Configuration of Sphinx for `make docs`. Building and reading the site need no network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

from ctxgcd import __version__  # noqa: E402
from ctxgcd.pipeline.paths import TABLE_KINDS  # noqa: E402

project = "ctxgcd"
author = copyright = "The ctxgcd maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "published", "parameters"]
napoleon_use_ivar = True  # the attributes of a class are listed once
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# measured/ contains pages and single tables; only the pages are part of the site.
exclude_patterns = ["_*", *(f"measured/{kind}_*.md" for kind in TABLE_KINDS)]
include_patterns = ["*.md", "measured/*.md"]
suppress_warnings = ["myst.header"]  # the heading of an included table has the third level

autodoc_member_order = "bysource"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Ids")}

html_theme = "furo"
html_title = f"ctxgcd {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
