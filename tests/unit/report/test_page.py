"""The report: displayed results, missing results, and content that it must not have."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.config import Params, parse
from ctxgcd.errors import UserError
from ctxgcd.evaluation.score_run import score_run
from ctxgcd.images.packed import pixels_file
from ctxgcd.plots.sensitivity import sensitivity_curves
from ctxgcd.report.make import make_report
from ctxgcd.tables.aggregate import read_long
from tests.helpers.report import images
from tests.helpers.results import ARTIST, FILE, NAMES, write_table
from tests.helpers.tables import three


class Texts(HTMLParser):
    """Collects the texts, tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def sections(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<h[23]>(.*?)</h[23]>", page, re.DOTALL)]


# -- the whole page --------------------------------------------------------------------------------------


def test_all_results_are_shown_and_missing_ones_named(page: str) -> None:
    assert sections(page) == [
        *("Summary", "Definitions", "Available results"),
        *("mine", "Main table", "Statistics", "Embedding", "Confusion matrix", "Accuracy per class"),
        *("Class gallery", "Published numbers", "Audit: consistency of All, Old and New", "State of reproduction"),
    ]
    text = "".join(Texts(page).texts)
    assert "6 runs on 1 benchmark." in text
    assert "cpu: test" in text
    assert "0123456789ab-dirty" in text
    assert "torch 2.14.1" in text
    assert "Missing: ablation_mine, sensitivity_mine, terms_mine, curves_mine, embedding_mine" in text
    assert "No results for CUB; Stanford Cars; " in text
    # No trial benchmark after these.
    own = ("first 50 classes", "first 50 classes, with a ViT", "first 50 classes, unequal")
    rest = ("CIFAR-10, 12,000 images", "Fashion-MNIST subset, compared methods")
    rest += ("CUB, first 50 classes, compared methods", "CUB, first 50 classes, with a ViT, compared methods")
    rest += ("CUB, first 20 classes, with a ViT",)
    assert "".join(f"; {one}" for one in (*(f"CUB, {one}" for one in own), *rest)) + "." in text
    assert len(page) < 5e6


def test_terms_and_signs_are_explained_before_they_are_used(page: str) -> None:
    explained = page.partition('<section id="s1">')[2].partition("</details>")[0]
    assert '<details class="inner" id="s1-1">' in explained  # folded
    for word in ("D^l: ", "D^u: ", "Old: ", "New: ", "All: ", "K: ", "v2: ", "±: ", "over n runs"):
        assert word in explained
    for word in ("CSV file of a table", "statistics_BENCHMARK"):
        assert word in explained


def test_a_report_makes_no_results(at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a folder without results
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "There are no finished runs." in text
    assert "Inconsistent published rows: 41 of 99" in text
    assert sorted(str(file) for file in Path().rglob("*")) == ["results", "results/report.html"]


def test_equal_results_make_equal_pages(page: str, at: Params, made: Any) -> None:
    make_report(at, made[2], Path("again.html"))
    assert Path("again.html").read_text(encoding="utf-8") == page


def test_partial_results(at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without embeddings, no table and no pixels: the page notes this and shows the rest."""
    shutil.copytree(made[0], tmp_path / "part")
    monkeypatch.chdir(tmp_path / "part")
    pixels_file(Path(made[2]["mine"])).unlink()
    for table in Path("results").glob("*_mine.*"):
        table.unlink()
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "No images: work/stores has no packed images." in text
    assert "Missing: main_mine" in text
    shutil.rmtree("results/runs/mine/full-paper/seed0")
    make_report(at, made[2], Path("results/report.html"))
    text = "".join(Texts(Path("results/report.html").read_text(encoding="utf-8")).texts)
    assert "1 of the 6 runs of the main rows are missing." in text
    assert "No confusion matrix, embedding and gallery: the first seed of Full method (paper) is missing." in text


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
    # full-paper+tau=0.1 is in the table of choices that the paper does not specify.
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
    captions = re.findall(r"<figcaption>(Accuracy as a function of each parameter.*?)</figcaption>", page)
    assert captions == [
        f"Accuracy as a function of each parameter: mean over seeds, with one std if there are several.{h}"
        for h in (" Hollow markers: published values.", "")
    ]


def test_empty_clusters_and_a_collapse_are_reported(
    page: str, at: Params, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "classes have no image" not in page
    assert "collapsed" not in page.partition("Confusion matrix</h3>")[2].partition("Published numbers</h2>")[0]
    shutil.copytree(made[0], tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    folder = Path("results/runs/mine/full-paper/seed0")
    assigned = pd.read_csv(folder / "assignments.csv")
    assigned["predicted"] = assigned["predicted"].replace({2: 0, 3: 1})
    assigned.to_csv(folder / "assignments.csv", index=False)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"collapsed": True, "idle": "no pairs in any epoch"}))
    split, out = read_split(Path("results/splits/mine.csv")), {"unlabelled": folder / "predictions.csv"}
    score_run(folder / "run.json", [folder / "assignments.csv"], split, folder / "metrics.json", out, code="")
    make_report(at, made[2], Path("results/report.html"))
    page = Path("results/report.html").read_text(encoding="utf-8")
    for section in ("Embedding", "Confusion matrix", "Accuracy per class", "Class gallery"):
        own = page.partition(f"{section}</h3>")[2].partition("</details>")[0]
        assert "2 of the K = 6 classes have no image; 4 were found." in own
        assert "The projections collapsed" in own
        assert "Mechanism without effect: no pairs in any epoch." in own
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


# -- excluded content ------------------------------------------------------------------------------


def test_names_are_escaped(page: str) -> None:
    read = Texts(page)
    scripts = [attributes for tag, attributes in read.tags if tag == "script"]
    assert scripts == [{"type": "application/json"}, {}]  # the data of the embedding and the script
    assert not [tag for tag, attributes in read.tags if any(name.startswith("on") for name in attributes)]
    shown = {text.strip() for text in read.texts}
    for name in NAMES:
        assert name in shown, name
    alternatives = {attributes.get("alt") for tag, attributes in read.tags if tag == "img"}
    assert any(text and NAMES[0] in text and FILE.partition("{")[0] in text for text in alternatives)


def test_the_page_has_no_external_links(page: str) -> None:
    for tag, attributes in Texts(page).tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in html.unescape(page)


def test_pictures_have_no_exif_and_the_page_no_path(page: str, made: Any) -> None:
    original = Image.open(made[0] / "photographs" / FILE.format("0-0"))
    assert original.getexif().get_ifd(0x8825)  # the photographs have a location in EXIF
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
