"""Captions of `snakemake --report`: the content of tables and figures by params.yaml."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.places import ROOT

jinja2 = pytest.importorskip("jinja2", reason="Jinja2 is not installed; pip install .[workflow]")

FOLDER = ROOT / "workflow/report"


def caption(file: str, config: dict[str, Any], inputs: list[str] | None = None, **wildcards: str) -> str:
    """Return the caption on one line; a key that is missing in params.yaml is an error."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    snakemake = SimpleNamespace(config=config, wildcards=SimpleNamespace(**wildcards), input=inputs or [])
    return " ".join(jinja2.Template(text, undefined=jinja2.StrictUndefined).render(snakemake=snakemake).split())


def test_the_caption_of_a_table_has_its_rows_and_seeds(committed: dict[str, Any]) -> None:
    committed["rows_of"] = {"main_ssb": ["kmeans", "simgcd"]}
    committed["seeds_of"]["cub50"]["faster_settings"] = [3, 4]
    of = {kind: caption("table.rst", committed, kind=kind, name="cub50") for kind in ("main", "unknowns", "speed")}
    assert "Rows: kmeans, rsplus, unoplus, orca, gcd, xcon, simgcd, full-paper, full-released." in of["main"]
    assert "full-paper+tau=0.1 against full-paper;" in of["unknowns"]
    assert of["unknowns"].endswith("Benchmark cub50: protocol cub50, K true, seeds 0, 1, 2.")
    assert "simgcd+precision=bf16 against simgcd+precision=float32." in of["speed"]
    assert of["speed"].endswith("seeds 3, 4.")
    own = caption("table.rst", committed, kind="main", name="ssb")
    assert "Rows: kmeans, simgcd. Benchmark cub: protocol official" in own


def test_the_caption_of_the_curves_has_the_drawn_rows(committed: dict[str, Any]) -> None:
    drawn = [f"results/runs/cub/{row}/seed{seed}/history.csv" for row in ("gcd", "full-paper") for seed in (0, 1)]
    assert caption("curves.rst", committed, drawn, benchmark="cub").endswith("main tables: gcd, full-paper.")
