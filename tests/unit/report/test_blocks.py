"""Blocks of the report: tables, confusion matrices, galleries, thumbnails, embeddings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxgcd.config import Params
from ctxgcd.images.packed import open_packed
from ctxgcd.pipeline.runs import Run
from ctxgcd.plots import embedding as embedding_module
from ctxgcd.plots.style import figure, plain
from ctxgcd.report.confusion import Matrix, confusion, matrix, most_frequent, per_class
from ctxgcd.report.embedding import Embedding, embedding
from ctxgcd.report.gallery import Gallery, distances, first
from ctxgcd.report.grid import Grid
from ctxgcd.report.page import Figure, Notes, Section, write_page
from ctxgcd.report.run_section import embedding_block, gallery_blocks, read_made
from ctxgcd.report.tables import table_grids
from ctxgcd.report.thumbnails import PER_LINE, sheet, square, thumbnail
from ctxgcd.tables.escapes import as_markdown
from tests.helpers.places import ROOT
from tests.helpers.predictions import of_run
from tests.helpers.report import images
from tests.helpers.results import NAMES, write_table
from tests.helpers.tables import three

MEASURED = ROOT / "docs/measured"


# Tables of the current format; tables of earlier formats are refused by every reader.
TABLES = [file for file in sorted(MEASURED.glob("*_*.csv")) if re.match(".*(collapsed|active_from)", file.read_text())]


# -- tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_tables_have_the_numbers_of_the_rendered_ones(params: Params, file: Path) -> None:
    """For each published table, the rows on the page are those of its Markdown file, in order."""
    rendered = file.with_suffix(".md").read_text(encoding="utf-8")
    place = 0
    for grid in table_grids(params, file.stem, MEASURED):
        for line in grid.lines:
            texts = [as_markdown(cell.text) for cell in line]
            marks = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
            texts = [marks[cell.mark].format(text) for cell, text in zip(line, texts, strict=True)]
            place = rendered.index(f"| {' | '.join(texts)} |", place)
        assert all(f"- {as_markdown(note)}\n" in rendered for note in grid.notes)


def test_published_numbers_are_marked(params: Params, tmp_path: Path) -> None:
    rows = ["simgcd", "full-paper"]
    benchmarks = ["cub", "scars", "aircraft"]
    write_table([run for row in rows for run in three(row, 60.0)], tmp_path / "main_ssb", rows, benchmarks)
    grid = table_grids(params, "main_ssb", tmp_path)[0]
    assert grid.over == ["CUB", "Stanford Cars", "FGVC-Aircraft"]
    assert [cell.published.split("\u00a0")[0] for cell in grid.lines[0][2:5]] == ["60.3", "65.6", "57.7"]
    write_page("x", "y", [Section("s", [grid])], tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    numbers = [cell.published for line in grid.lines for cell in line if cell.published]
    assert re.findall(r"<small>(.*?)</small>", page) == [f"published {number}" for number in numbers]
    assert [line[0].text for line in grid.apart][:3] == ["k-means (published)", "RS+ (published)", "UNO+ (published)"]
    ours, apart = re.findall(r"<tbody[^>]*>(.*?)</tbody>", page, re.DOTALL)  # sorting stays within a tbody
    assert (ours.count("<tr>"), apart.count("(published)</td>")) == (len(grid.lines), len(grid.apart))
    assert re.search(r'<th colspan="11" scope="rowgroup">Published, not run here</th>', apart)


def test_a_benchmark_stands_over_all_its_columns(params: Params, tmp_path: Path) -> None:
    rows, benchmarks = ["simgcd", "full-paper"], ["cub", "scars", "aircraft"]
    runs = [Run("scars", row, 0) for row in rows]
    predictions = {run: of_run(tmp_path, run, (0, 1, 2, int(run.row == "simgcd"))) for run in runs}
    metrics = [one for b in benchmarks for row in rows for one in three(row, 60.0, benchmark=b)]
    write_table(metrics, tmp_path / "main_ssb", rows, benchmarks, predictions, pairs={"full-paper": "simgcd"})
    grid = table_grids(params, "main_ssb", tmp_path)[0]
    assert grid.head == ["Method", "n", *["All", "Old", "New", "Changed"] * 3]
    assert [[cell.text for cell in line][5::4] for line in grid.lines] == [["–"] * 3, ["–", "25.00", "–"]]
    write_page("x", "y", [Section("s", [grid])], tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8").count('<th colspan="4" scope="colgroup">') == 3


# -- blocks ----------------------------------------------------------------------------------------------


def test_confusion_by_hand() -> None:
    true, matched = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 3, 3])
    counts = confusion(true, matched, 3)
    assert counts.tolist() == [[1, 2, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]]
    names = ["a", "b", "c", "cluster 3"]
    shown = matrix(counts, names, "")
    assert isinstance(shown, Matrix)
    assert shown.lines[0] == [(1, 0.333), (2, 0.667), (0, 0.0), (0, 0.0)]
    assert [[cell.text for cell in line] for line in most_frequent(counts, names).lines] == [
        ["a", "b", "2", "66.7"],
        ["b", "cluster 3", "1", "50.0"],
        ["c", "cluster 3", "1", "100.0"],
    ]
    assert [[cell.text for cell in line] for line in per_class(counts, names, [True, False, False]).lines] == [
        ["a", "Old", "b (2)", "3", "33.3"],
        ["b", "New", "cluster 3 (1)", "2", "50.0"],
        ["c", "New", "cluster 3 (1)", "1", "0.0"],
    ]


def test_a_matrix_of_many_classes_is_a_picture() -> None:
    counts = np.eye(100, dtype=np.int64) * 7
    shown = matrix(counts, [str(c) for c in range(100)], "caption")
    assert isinstance(shown, Figure)
    picture = np.asarray(images(shown.uri)[0].convert("RGB"))
    assert picture.shape == (100, 100, 3)
    assert (picture[~np.eye(100, dtype=bool)] == 255).all()
    assert len(np.unique(picture[np.eye(100, dtype=bool)], axis=0)) == 1


def test_typical_images_are_near_the_mean_and_uncertain_ones_between_means() -> None:
    angles = np.radians([0, 2, 40, 90, 88, 60])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [5], [1], [1], [1], [3]]
    groups = np.array([0, 0, 0, 7, 7, 7])
    distance, margin = distances(features, groups)
    assert first(distance, groups == 0, 1) == [1]  # the mean points to about 14 degrees
    assert first(margin, groups == 0, 2) == [2, 1]
    assert first(margin, groups == 7, 1) == [5]
    alone, its_margin = distances(features, np.zeros(6, np.int64))
    assert np.array_equal(alone, -its_margin)


def test_thumbnails_are_centre_squares() -> None:
    pixels = np.zeros((100, 300, 3), np.uint8)
    pixels[:, 100:200] = [10, 200, 30]
    assert square(pixels, 96).size == (96, 96)
    assert np.abs(np.asarray(images(thumbnail(pixels))[0]).astype(int) - [10, 200, 30]).max() < 12
    assert square(pixels[:28, :28], 96).size == (28, 28)  # never enlarged
    many = sheet([np.full((9, 9, 3), 5 * number, np.uint8) for number in range(PER_LINE + 1)])
    assert (many.columns, many.lines) == (PER_LINE, 2)
    whole = np.asarray(images(many.uri)[0].convert("RGB")).astype(int)
    for number in (0, 7, PER_LINE - 1, PER_LINE):
        top, left = number // PER_LINE * many.side, number % PER_LINE * many.side
        assert abs(whole[top + many.side // 2, left + many.side // 2, 0] - 5 * number) < 8


def test_embeddings_accept_any_names_and_scores(tmp_path: Path) -> None:
    """Points, texts and labels are sufficient, as for a report on other images."""
    points = np.array([[0.0, 0.0], [3.0, 1.0], [-2.0, 5.0]])
    shown = embedding(points, ["x", "</script>", "z"], {"class": ["new-1", "new-1", "dög"]}, "caption")
    assert all(0 <= mark.x <= shown.width and 0 <= mark.y <= shown.height for mark in shown.marks)
    write_page("t", "", [Section("s", [shown, Notes(["L_n"])])], tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "</script>" not in page.partition('application/json">')[2].partition("</script>")[0]
    assert "L<sub>n</sub>" in page


def test_a_class_has_one_colour_in_the_figure_and_on_the_map(
    made: Any, at: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    @contextmanager
    def kept(*how: Any) -> Iterator[Any]:
        with figure(*how) as drawing:
            yield drawing
        drawn.append(drawing)

    monkeypatch.setattr(embedding_module, "figure", kept)
    run = read_made(Path("results/runs/mine/full-paper/seed0"), Path("results/splits/mine.csv"), None)
    assert run
    run.kept["matched_class"] = run.kept["matched_class"].replace({2: 6})  # a cluster without a class
    run = replace(run, names=[*run.names, "cluster 6"], old=[*run.old, False])
    true, matched = ([run.names[c] for c in run.kept[of]] for of in ("true_class", "matched_class"))
    embedding_module.embedding(
        run.features, true, run.kept["old"].astype(bool), matched, tmp_path / "e.png", "", seed=0
    )
    shown = embedding_block(run)
    assert isinstance(shown, Embedding)
    colours = {}
    for axis, colouring in zip(drawn[0].axes, shown.colourings.values(), strict=True):
        handles = axis.get_legend().legend_handles
        assert [handle.get_label() for handle in handles] == [plain(name, 18) for name in colouring["labels"]]
        assert [handle.get_color() for handle in handles] == colouring["colours"]
        for name, colour in zip(colouring["labels"], colouring["colours"], strict=True):
            assert colours.setdefault(name, colour) == colour
    assert set(shown.colourings["true class"]["labels"][:2]) == {"plain", NAMES[2]}  # old ones first
    assert len(set(colours.values())) == len(colours) == 7


def test_a_diverged_run_lacks_only_the_embedding(made: Any, at: Params) -> None:
    store = open_packed(Path(made[2]["mine"]))
    run = read_made(Path("results/runs/mine/full-paper/seed0"), Path("results/splits/mine.csv"), store)
    assert run
    run.features[3] = np.nan
    block = embedding_block(run)
    assert isinstance(block, Notes)
    assert "finite features" in block.lines[0]
    gallery = gallery_blocks(run)[1]
    assert isinstance(gallery, Gallery)
    assert [group.facts[0] for group in gallery.groups] == ["new class"] * 4 + ["old class"] * 2
    sizes = run.rows["predicted"].value_counts()
    assert sorted(int(group.facts[1].split()[0]) for group in gallery.groups) == sorted(sizes)
    assert all(len(group.typical) == min(10, int(group.facts[1].split()[0])) for group in gallery.groups)


def test_a_grid_without_lines(tmp_path: Path) -> None:
    write_page("t", "", [Section("s", [Grid("g", ["a", "b"], [], 1)])], tmp_path / "x.html")
    assert "<tbody>" in (tmp_path / "x.html").read_text(encoding="utf-8")
