"""Both reports after a small real run on own photographs with code in names and locations in EXIF."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.results import ARTIST, IMAGES, NAMES, write_photographs
from tests.helpers.workflow import EIGHT, OWN, Project, add_own, fresh, shrink, write_weights

MADE = [f"results/main_{OWN}.html", f"results/figures/embedding_{OWN}.png", "results/audit_published.html"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one benchmark after one training, its table and a figure."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder / OWN)
    project = fresh(folder / "project", folder)
    write_weights(project.folder)

    def small(content: dict[str, Any]) -> None:
        shrink(content, {name: content["benchmarks"][name]["images"] for name in EIGHT})
        add_own(content, folder / OWN)
        content["benchmarks"][OWN]["listing"] = "list.csv"
        content["rows"]["main"] = ["full-paper"]

    project.change(small)
    result = project.call("--cores", "2", *MADE)
    assert result.code == 0, result.output[-6000:]
    return project


def test_report_shows_existing_results_and_makes_none(finished: Project) -> None:
    result = finished.call("report")
    assert result.code == 0, result.output
    assert set(result.jobs) == {"report", "total"}
    page = (finished.folder / "results/report.html").read_text(encoding="utf-8")
    for shown in ("Clustering accuracy (v2, percent)", "Confusion", "Class gallery", "1 run on 1 benchmark"):
        assert shown in page
    assert page.count("<use ") == len(NAMES) * IMAGES - IMAGES  # D^u: all but half of the two labelled classes
    absent = ", ".join(f"{name}_{OWN}" for name in ("ablation", "sensitivity", "statistics", "terms", "curves"))
    assert f"Missing: {absent}, duplicates_{OWN}; run `snakemake benchmark_{OWN}` to create them." in page
    assert "No results for CUB; " in page
    assert NAMES[0] not in page
    for private in (ARTIST, str(finished.folder), str(finished.data)):
        assert private not in page
    assert finished.dry(*MADE).jobs == {}


def test_snakemakes_own_report_has_categories_and_captions(finished: Project, tmp_path: Path) -> None:
    for name in ("report.html", "report.zip"):
        result = finished.call("--report", str(tmp_path / name), *MADE)
        assert result.code == 0, result.output
        assert (tmp_path / name).stat().st_size > 1e5
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    results, categories = (
        json.loads(re.findall(rf"^ *var {name} = (\{{.*\}});?$", page, re.MULTILINE)[0])
        for name in ("results", "categories")
    )
    table, figure, audit = MADE
    assert categories == {"Tables": {"main": [table], "published": [audit]}, "Figures": {"embedding": [figure]}}
    assert "Rows: full-paper." in results[table]["caption"]
    assert f"Benchmark {OWN}: protocol official, K true, seeds 0." in results[table]["caption"]
    assert f"images of {OWN} after full-paper, seed 0" in results[figure]["caption"].replace("\n", " ")
    assert "published values" in results[audit]["caption"]
    assert "training seeds 0" in page
