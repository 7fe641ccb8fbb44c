"""The report of a discovery: classes with few or no images, and the map."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ctxgcd.discover import model as models
from ctxgcd.discover.class_shapes import LEAST_IMAGES
from ctxgcd.discover.report import Discovered, write_report
from ctxgcd.report.thumbnails import SIDE
from tests.helpers.discovered import facts_of, labelled_rows, write_discovered
from tests.helpers.discovery import table


def page_of(out: Path, to: Path, classes: np.ndarray, names: list[str], known: int, **changes: Any) -> str:
    """The report of the images of a discovery with other classes, two per class apart in their features."""
    predictions = table(out / "predictions.csv")
    predictions = predictions.iloc[np.arange(len(classes)) % len(predictions)].reset_index(drop=True)
    predictions["class"], predictions["name"] = classes, [names[c] for c in classes]
    predictions["margin"], predictions["second"] = predictions["confidence"] / 2, names[0]
    predictions["by_hand"] = False
    features = np.random.default_rng(0).normal(size=(len(classes), 8)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    made = replace(models.load(out / "model"), names=names, known=known, numbers=[""] * len(names), into=())
    [store] = out.glob("work/images-*/images.npz")
    ids = np.arange(len(classes)) % 40
    write_report(
        Discovered(made, predictions, features, ids, labelled_rows({}, ids[:0]), store, "photos"),
        facts_of(classes, names, known) | changes,
        to / "report.html",
    )
    return (to / "report.html").read_text(encoding="utf-8")


def lines_of(page: str, title: str) -> list[list[str]]:
    body = page[page.index(f"<caption>{title}</caption>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", body[: body.index("</table>")], re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows[1:]]


NAMES = ["robin", "wren", "new-1", "new-2", "new-3", "new-4"]


def test_classes_with_few_or_no_images(out: Path, tmp_path: Path) -> None:
    """A known class without images is listed; an image alone has no mean confidence; an empty new class is counted."""
    page = page_of(out, tmp_path, np.repeat([0, 2, 3, 4], [3, 20, 1, 2]), NAMES, 2)
    lines = lines_of(page, "Classes")
    assert [line[:3] for line in lines] == [
        ["new-1", "new", "20"],
        ["robin", "known", "3"],
        ["new-3", "new", "2"],
        ["new-2", "new", "1"],
        ["wren", "known", "0"],
    ]
    assert [line[4] == "–" for line in lines] == [False, False, True, True, True]
    assert "A class of fewer than 3 unlabelled images has no mean confidence" in page
    assert re.search(r'<h4>wren</h4>\n<p class="facts"><span>0 unlabelled images</span></p>', page)
    assert re.search(r'<h4>new-2</h4>\n<p class="facts"><span>1 unlabelled image</span></p>', page)
    assert "2 of the classes have no unlabelled images." in page  # wren and new-4
    only = page_of(out, tmp_path, np.repeat([0, 2], [3, 4]), NAMES[:3], 2)
    assert "1 of the classes has no unlabelled images." in only
    assert "has no mean confidence" in only


@pytest.mark.parametrize(("divided", "listed"), [(1, False), (2, False), (3, True)])
def test_divided_classes_are_compared_with_others(out: Path, tmp_path: Path, divided: int, listed: bool) -> None:
    page = page_of(out, tmp_path, np.repeat(range(divided), 2 * LEAST_IMAGES), NAMES, 0)
    assert ("Classes that look like several are not listed, because a class is compared" in page) != listed
    assert ("<caption>Classes that look like several</caption>" in page) == listed


@pytest.mark.parametrize(("classes", "opened"), [(3, True), (30, False)])
def test_the_map_has_a_legend_for_every_colouring(out: Path, tmp_path: Path, classes: int, opened: bool) -> None:
    """A legend of many classes is folded."""
    names = [f"new-{number + 1}" for number in range(classes)]
    page = page_of(out, tmp_path, np.arange(60) % classes, names, 0)
    legends = re.findall(r'<details class="legend" data-of="(\w+)"( open)?( hidden)?>(.*?)</details>', page, re.DOTALL)
    assert [(name, bool(hidden)) for name, _, hidden, _ in legends] == [
        ("class", False),
        ("kind", True),
        ("confidence", True),
    ]
    assert bool(legends[0][1]) == opened
    shown = dict(re.findall(r'<li><i style="background: (#\w+)"></i>(.*?)</li>', legends[0][3]))
    assert sorted(shown.values()) == sorted(names)
    svg = page[page.index('<svg viewBox="0 0 1000') :]
    assert set(re.findall(r'fill="(#\w+)"', svg[: svg.index("</svg>")])) == set(shown)


def test_an_estimate_and_the_check_are_explained(out: Path, tmp_path: Path) -> None:
    estimated = {"K_source": "estimated", "tried": {6: 75.0, 5: 74.0}, "labelled": 10}
    check = {"check": {"scores": {}, "said": ["What the check says."]}}
    page = page_of(out, tmp_path, np.repeat([0, 2], [3, 20]), NAMES, 2, **estimated, **check)
    assert "6 classes: 2 known and 4 new (estimated)" in page
    assert (
        "The number of classes, 6, is a rough estimate: 5 classes group as many of the 10 labelled images correctly, "
        "and 3 of the 4 new classes have fewer than 3 images. Set it with --classes if you know it." in page
    )
    assert page.index("What the check says.") < page.index("semi-supervised k-means also keeps images")
    given = page_of(out, tmp_path, np.repeat([0, 2], [3, 20]), NAMES, 2)
    assert "rough estimate" not in given
    assert "In this check, " not in given


def test_every_image_has_a_number_in_the_order_of_classes_and_scores(tmp_path: Path) -> None:
    """The largest class first, and its most typical image; the data says which class the page means."""
    names = ["robin", "wren", "new-1", "new-2"]
    images = {f"{c}/</script> {number}.jpg": c for c, size in ((3, 3), (0, 12), (2, 70)) for number in range(size)}
    page = write_discovered(tmp_path, images, names, 2).read_text(encoding="utf-8")
    data = json.loads(re.findall(r'id="all-images">(.*?)</script>', page, re.DOTALL)[0])
    paths = [path for c in (2, 0, 3) for path in images if images[path] == c]
    assert data["images"]["path"] == paths
    assert data["images"]["of"] == [images[path] for path in paths]
    assert data["images"]["second"] == [(images[path] + 1) % 4 for path in paths]
    assert data["images"]["confidence"][-3:] == [90, 89, 89]
    assert data["classes"] == [{"key": name, "name": name, "merged": False} for name in names]
    assert data["base"] == "../photos/"
    sheets = re.findall(r'class="sheet">(.*?)</script>', page)
    assert [Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size for uri in sheets] == [
        (8 * SIDE, 8 * SIDE),
        (8 * SIDE, 3 * SIDE),  # 85 images, 64 of them on the first sheet
    ]
    lists = re.findall(r'data-images="([\d ]*)"', page)
    assert lists[0] == " ".join(map(str, range(10)))  # the most typical ones of new-1
    assert lists[1] == "69 68 67 66 65"  # and the least certain ones
    assert re.findall(r'data-from="(\d+)" data-to="(\d+)"', page) == [("0", "70"), ("70", "82")]
    assert [page.count(f'<article data-class="{c}">') for c in range(4)] == [1, 1, 1, 1]
    assert page.count('class="naming"') == 2  # a known class has a name
    assert "below, or with `ctxgcd label OUT new-2,new-1=NAME`" in page


def test_equal_pages_keep_their_corrections(tmp_path: Path) -> None:
    """A browser keeps corrections under the page's id, which is another one for other classes."""
    ids = []
    for folder, change in (("a", 0), ("b", 0), ("c", 1)):
        images = {f"{number}.jpg": (number + change * (number == 3)) % 2 for number in range(8)}
        page = write_discovered(tmp_path / folder, images, ["new-1", "new-2"], 0).read_text(encoding="utf-8")
        ids += re.findall(r'"id": "(\w+)"', page)
    assert ids[0] == ids[1] != ids[2]


def test_labelled_images_are_numbered_after_the_others(tmp_path: Path) -> None:
    """Class by class, by their paths; the card of their class has them, and both lists have equal counts."""
    images = {f"{number}.jpg": (0, 2, 2)[number % 3] for number in range(12)}
    given, by_hand = {"z.jpg": 0, "y.jpg": 1, "a.jpg": 0}, {"3.jpg", "1.jpg"}
    file = write_discovered(tmp_path, images, ["robin", "wren", "new-1"], 2, labelled=given, by_hand=by_hand)
    page = file.read_text(encoding="utf-8")
    data = json.loads(re.findall(r'id="all-images">(.*?)</script>', page, re.DOTALL)[0])["images"]
    assert data["path"][12:] == ["a.jpg", "z.jpg", "y.jpg"]
    assert data["of"][12:] == [0, 0, 1]
    assert len(data["second"]) == len(data["confidence"]) == 12
    shares = dict(zip(data["path"][:12], data["confidence"], strict=True))
    assert {path for path, share in shares.items() if share is None} == by_hand
    lists = r'labelled">\n<summary>(.*?)</summary>\n<ul class="pictures" data-from="(\d+)" data-to="(\d+)"'
    assert re.findall(lists, page) == [("2 labelled images", "12", "14"), ("1 labelled image", "14", "15")]
    facts = re.findall(r'<article data-class="(\d)">.*?<p class="facts"><span>(.*?)</p>', page, re.DOTALL)
    assert [(c, text.replace("</span>", "").split("<span>")) for c, text in facts] == [
        ("2", ["7 unlabelled images", "1 labelled by hand", "mean confidence 59%"]),
        ("0", ["3 unlabelled images", "2 labelled", "1 labelled by hand", "mean confidence 67%"]),
        ("1", ["0 unlabelled images", "1 labelled"]),
    ]
    assert [line[:4] for line in lines_of(page, "Classes")] == [
        ["new-1", "new", "7", "1"],
        ["robin", "known", "3", "3"],
        ["wren", "known", "0", "1"],
    ]
    listed = re.findall(r'class="image-list">(.*?)</ol>', page, re.DOTALL)[0]
    assert listed.count("<li>") == 10  # an image whose class was given is not uncertain
