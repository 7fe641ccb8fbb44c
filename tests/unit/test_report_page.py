"""The report: what it shows of real results, what it names as gaps, and what must never be in it."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.config import Params, parse
from ctxgcd.errors import UserError
from ctxgcd.evaluation.score_run import score_run
from ctxgcd.images.store import open_store
from ctxgcd.plots import embedding as embedding_module
from ctxgcd.plots.sensitivity import sensitivity_curves
from ctxgcd.plots.style import figure, plain
from ctxgcd.report.confusion import Matrix, commonest, confusion, matrix, per_class
from ctxgcd.report.embedding import Embedding, embedding
from ctxgcd.report.gallery import Gallery, distances, first
from ctxgcd.report.grid import Grid
from ctxgcd.report.make import make_report
from ctxgcd.report.packed import open_packed
from ctxgcd.report.page import Figure, Notes, Section, write_page
from ctxgcd.report.run_section import embedding_block, gallery_blocks, read_made
from ctxgcd.report.tables import table_grids
from ctxgcd.report.thumbnails import COLUMNS, sheet, square, thumbnail
from ctxgcd.tables.aggregate import read_long
from ctxgcd.tables.render import as_markdown
from tests.results import ARTIST, FILE, NAMES, write_results, write_table
from tests.unit.test_tables import three

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs/measured"
# Of the present format; a table of an earlier one is refused, as by whatever reads it.
TABLES = [file for file in sorted(MEASURED.glob("*_*.csv")) if re.match(".*(collapsed|active_from)", file.read_text())]


class Texts(HTMLParser):
    """What a browser shows of a page: its texts, its tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, str]]:
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    root = tmp_path_factory.mktemp("made") / "user name"
    return root, content, write_results(content, root)


@pytest.fixture
def at(made: tuple[Path, dict[str, Any], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(made[0])
    return parse(made[1])


@pytest.fixture
def page(at: Params, made: tuple[Path, dict[str, Any], dict[str, str]]) -> str:
    make_report(at, made[2], Path("results/report.html"))
    return Path("results/report.html").read_text(encoding="utf-8")


def sections(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<h[23]>(.*?)</h[23]>", page, re.DOTALL)]


def images(page: str) -> list[Image.Image]:
    found = re.findall(r"data:image/(?:png|webp);base64,([A-Za-z0-9+/=]+)", html.unescape(page))
    return [Image.open(io.BytesIO(base64.b64decode(text))) for text in found]


# -- the whole page --------------------------------------------------------------------------------------


def test_all_that_exists_is_shown_and_gaps_are_named(page: str) -> None:
    assert sections(page) == [
        *("Summary", "How to read this page", "What there is"),
        *("mine", "Main table", "Statistics", "Embedding", "Confusion", "Accuracy of each class"),
        *("Gallery of the classes", "The published numbers", "Audit: do they agree with themselves?"),
        "State: which of them are reproduced",
    ]
    text = "".join(Texts(page).texts)
    assert "6 runs on 1 benchmark." in text
    assert "cpu: test" in text
    assert "0123456789ab-dirty" in text
    assert "torch 2.14.1" in text
    assert "Missing: ablation_mine, sensitivity_mine, terms_mine, curves_mine, embedding_mine" in text
    assert "No results yet for CUB; Stanford Cars; " in text
    assert "; CUB, first 50 classes; CIFAR-10, 12,000 images." in text  # and no trial benchmark after them
    assert len(page) < 5e6


def test_words_and_signs_are_explained_before_they_are_used(page: str) -> None:
    explained = page.partition('<section id="s1">')[2].partition("</details>")[0]
    assert '<details class="inner" id="s1-1">' in explained  # folded
    for word in ("D^l: ", "D^u: ", "Old: ", "New: ", "All: ", "K: ", "v2: ", "±: ", "over n runs"):
        assert word in explained
    for word in ("CSV beside a table", "statistics_BENCHMARK"):
        assert word in explained


def test_nothing_is_asked_for(at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a place without any result
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "No run has finished yet." in text
    assert "Published rows that disagree with themselves: 41 of 99" in text
    assert sorted(str(file) for file in Path().rglob("*")) == ["results", "results/report.html"]


def test_equal_results_make_equal_pages(page: str, at: Params, made: Any) -> None:
    make_report(at, made[2], Path("again.html"))
    assert Path("again.html").read_text(encoding="utf-8") == page


def test_partial_results(at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run without embeddings, no table, no store: the page says so, and shows the rest."""
    shutil.copytree(made[0], tmp_path / "part")
    monkeypatch.chdir(tmp_path / "part")
    shutil.rmtree("work")
    for table in Path("results").glob("*_mine.*"):
        table.unlink()
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "No pictures: the packed images are not in work/stores." in text
    assert "Missing: main_mine" in text
    shutil.rmtree("results/runs/mine/full-paper/seed0")
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "1 of the 6 runs of the main rows are missing." in text
    assert "No confusion, embedding and gallery: the first seed of Full method (paper) is missing." in text


def test_runs_in_no_table_are_named(
    page: str, at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "in no table of" not in page
    shutil.copytree(made[0], tmp_path / "left")
    monkeypatch.chdir(tmp_path / "left")
    simgcd = json.loads(Path("results/runs/mine/simgcd/seed1/metrics.json").read_text())
    for row, seed in [("simgcd+lr=0.2", 0), ("simgcd+lr=0.2", 1), ("simgcd", 7), ("full-paper+tau=0.1", 1)]:
        folder = Path(f"results/runs/mine/{row}/seed{seed}")
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(simgcd | {"row": row, "seed": seed}))
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    # full-paper+tau=0.1 is in the table of what the paper leaves open.
    named = "mine: SimGCD (seed 7); mine: SimGCD, lr = 0.2 (seed 0, 1)."
    assert f"3 of the 10 runs are in no table of the current params.yaml: {named}" in text
    impossible = made[1] | {"rows": made[1]["rows"] | {"faster_settings": {"simgcd+k=7": "simgcd"}}}
    make_report(parse(impossible), made[2], Path("results/report.html"))  # simgcd has no k
    assert named in Path("results/report.html").read_text(encoding="utf-8")


def test_hollow_is_explained_where_a_published_value_is_drawn(
    at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["full-paper", "full-paper+lambda_n=0.3"]
    for benchmark in ("cub", "mine"):
        table = f"sensitivity_{benchmark}"
        metrics = [run | {"benchmark": benchmark} for row in rows for run in three(row, 60.0)]
        write_table(metrics, Path("results", table), rows, [benchmark])
        long = read_long(Path(f"results/{table}.csv"))
        sensitivity_curves(long, Path(f"results/figures/{table}.png"), benchmark)
    make_report(at, made[2], Path("results/report.html"))
    page = Path("results/report.html").read_text(encoding="utf-8")
    captions = re.findall(r"<figcaption>(Accuracy against each parameter.*?)</figcaption>", page)
    assert captions == [
        f"Accuracy against each parameter, mean ± std over seeds.{h}" for h in (" Hollow: as published.", "")
    ]


def test_empty_clusters_and_a_collapse_are_told(
    page: str, at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "assumed classes have no image" not in page
    assert "collapsed" not in page.partition("Confusion</h3>")[2].partition("The published numbers</h2>")[0]
    shutil.copytree(made[0], tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    folder = Path("results/runs/mine/full-paper/seed0")
    assigned = pd.read_csv(folder / "assignments.csv")
    assigned["predicted"] = assigned["predicted"].replace({2: 0, 3: 1})
    assigned.to_csv(folder / "assignments.csv", index=False)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"collapsed": True}))
    split, out = read_split(Path("results/splits/mine.csv")), {"unlabelled": folder / "predictions.csv"}
    score_run(folder / "run.json", [folder / "assignments.csv"], split, folder / "metrics.json", out, code="")
    make_report(at, made[2], Path("results/report.html"))
    page = Path("results/report.html").read_text(encoding="utf-8")
    for section in ("Embedding", "Confusion", "Accuracy of each class", "Gallery of the classes"):
        own = page.partition(f"{section}</h3>")[2].partition("</details>")[0]
        assert "2 of the 6 assumed classes have no image, so 4 were found." in own
        assert "Its projections collapsed" in own
    assert page.count("<article>") == 4  # groups of the gallery


@pytest.mark.parametrize(
    "file",
    ["main_mine.csv", "statistics_mine.csv", "runs/mine/simgcd/seed1/metrics.json"]
    + [f"runs/mine/full-paper/seed0/{name}" for name in ("predictions.csv", "embeddings.npz")],
)
def test_a_damaged_result_is_named(
    at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    shutil.copytree(made[0], tmp_path / "damaged")
    monkeypatch.chdir(tmp_path / "damaged")
    Path("results", file).write_text("benchmark,method\nmine,x\n")
    with pytest.raises(UserError, match=re.escape(Path("results", file).parent.name)):
        make_report(at, made[2], Path("results/report.html"))


# -- what must not be in it ------------------------------------------------------------------------------


def test_names_are_escaped(page: str) -> None:
    read = Texts(page)
    scripts = [attributes for tag, attributes in read.tags if tag == "script"]
    assert scripts == [{"type": "application/json"}, {}]  # the embedding's data and our own
    assert not [tag for tag, attributes in read.tags if any(name.startswith("on") for name in attributes)]
    shown = {text.strip() for text in read.texts}
    for name in NAMES:
        assert name in shown, name
    alternatives = {attributes.get("alt") for tag, attributes in read.tags if tag == "img"}
    assert any(text and NAMES[0] in text and FILE.partition("{")[0] in text for text in alternatives)


def test_nothing_leads_out_of_the_page(page: str) -> None:
    for tag, attributes in Texts(page).tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in html.unescape(page)


def test_pictures_carry_no_exif_and_the_page_no_place(page: str, made: Any) -> None:
    original = Image.open(made[0] / "photographs" / FILE.format("0-0"))
    assert original.getexif().get_ifd(0x8825)  # the photographs do have a place
    assert ARTIST.encode() in (made[0] / "photographs" / FILE.format("0-0")).read_bytes()
    found = images(page)
    assert len(found) > 6 * 5
    for image in found:
        assert not image.getexif()
        assert not {"exif", "comment", "xmp", "icc_profile"} & set(image.info)
    raw = b"".join(base64.b64decode(text) for text in re.findall(r"base64,([A-Za-z0-9+/=]+)", html.unescape(page)))
    assert b"Exif" not in raw
    assert ARTIST.encode() not in raw
    assert ARTIST not in page
    assert str(made[0]) not in page
    assert str(made[0].parent) not in page
    assert "user name" not in page


# -- tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_tables_have_the_numbers_of_the_rendered_ones(params: Params, file: Path) -> None:
    """Every table that was published as CSV and Markdown: what the page shows is the Markdown's lines, in order."""
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


# -- pieces ----------------------------------------------------------------------------------------------


def test_confusion_by_hand() -> None:
    true, matched = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 3, 3])
    counts = confusion(true, matched, 3)
    assert counts.tolist() == [[1, 2, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]]
    names = ["a", "b", "c", "cluster 3"]
    shown = matrix(counts, names, "")
    assert isinstance(shown, Matrix)
    assert shown.lines[0] == [(1, 0.333), (2, 0.667), (0, 0.0), (0, 0.0)]
    assert [[cell.text for cell in line] for line in commonest(counts, names).lines] == [
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


def test_the_typical_is_nearest_and_the_uncertain_lies_between() -> None:
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
    many = sheet([np.full((9, 9, 3), 5 * number, np.uint8) for number in range(COLUMNS + 1)])
    assert (many.columns, many.lines) == (COLUMNS, 2)
    whole = np.asarray(images(many.uri)[0].convert("RGB")).astype(int)
    for number in (0, 7, COLUMNS - 1, COLUMNS):
        top, left = number // COLUMNS * many.side, number % COLUMNS * many.side
        assert abs(whole[top + many.side // 2, left + many.side // 2, 0] - 5 * number) < 8


def test_a_store_is_read_as_training_reads_it(made: Any, at: Params) -> None:
    index = Path(made[2]["mine"])
    packed, kept = open_packed(index), open_store(index)
    assert packed
    for number in range(len(kept)):
        assert np.array_equal(packed[number], kept.image(number).numpy())
    assert open_packed(Path(made[2]["cub"])) is None


def test_embeddings_take_any_names_and_scores(tmp_path: Path) -> None:
    """What a report on other images needs: points, texts and labels alone."""
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
    run.kept["matched_class"] = run.kept["matched_class"].replace({2: 6})  # a cluster that no class was left for
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


def test_a_run_that_diverged_has_no_embedding_and_all_else(made: Any, at: Params) -> None:
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
