"""The report in a headless Chromium, run by `make test-browser`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ctxgcd.config import parse
from ctxgcd.plots.sensitivity import sensitivity_curves
from ctxgcd.report.make import make_report
from ctxgcd.tables.aggregate import read_long
from tests.browser.devtools import NAMES, Page, find
from tests.helpers.places import ROOT
from tests.helpers.results import NAMES as CLASSES
from tests.helpers.results import write_results, write_table
from tests.helpers.tables import three

PHONE, DESK = 390, 1280

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not find(), reason=f"none of {', '.join(NAMES)} is installed (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of block: tables of one and of several benchmarks, a figure, names with code."""
    root = tmp_path_factory.mktemp("report")
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    stores = write_results(content, root)
    rows = ["full-paper", "full-paper+k=20", "full-paper+lambda_n=0.3"]
    metrics = [run for number, row in enumerate(rows) for run in three(row, 60.0 + number)]
    write_table(metrics, root / "results/main_ssb", ["gcd", *rows[::-1]], ["cub", "scars", "aircraft"])
    write_table(metrics, root / "results/sensitivity_cub", rows, ["cub"])
    long = read_long(root / "results/sensitivity_cub.csv")
    sensitivity_curves(long, root / "results/figures/sensitivity_cub.png", "CUB")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        make_report(parse(content), stores, Path("results/report.html"))
    return root / "results/report.html"


@pytest.fixture(params=[DESK, PHONE])
def page(request: pytest.FixtureRequest, chromium: Page, report: Path) -> Page:
    """The report in a window of a desktop and of a phone, with all sections unfolded."""
    chromium.open(report, request.param)
    chromium.run("document.querySelectorAll('details').forEach(details => { details.open = true })")
    return chromium


def texts(page: Page, table: int, column: int) -> list[str]:
    """Return the texts of a column of a table, without published values."""
    cells = f"[...document.querySelectorAll('table.sortable')[{table}].tBodies[0].rows].map(row => row.cells[{column}])"
    found: list[str] = page.run(f"{cells}.map(cell => cell.firstChild ? cell.firstChild.textContent : '')")
    return found


def test_console_is_silent(page: Page) -> None:
    page.run("new Promise(done => setTimeout(done, 200))")
    assert page.of("Runtime.exceptionThrown") == []
    assert page.of("Runtime.consoleAPICalled") == []
    assert page.of("Log.entryAdded") == []


def test_every_image_loads(page: Page) -> None:
    assert page.run("document.images.length") > 60
    page.run("Promise.all([...document.images].map(image => image.decode()))")
    assert page.run("[...document.images].filter(image => !image.complete || image.naturalWidth === 0).length") == 0


def test_no_network_requests(page: Page, report: Path) -> None:
    urls = [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith("data:")] == [report.resolve().as_uri()]


def test_the_content_security_policy_blocks_external_resources(page: Page) -> None:
    """The policy refuses external images and added scripts."""
    page.run(
        "new Promise(done => { const image = new Image(); image.onerror = done; image.onload = done;"
        " image.src = 'file:///etc/hostname.png'; document.body.append(image) })"
    )
    page.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 4'}))")
    assert page.run("window.ran === undefined")
    page.run("new Promise(done => setTimeout(done, 200))")
    refused = [entry["entry"]["text"] for entry in page.of("Log.entryAdded")]
    assert any("img-src data:" in text for text in refused)
    assert any("script-src" in text for text in refused)


def test_names_are_texts(page: Page) -> None:
    assert page.run("window.ran === undefined")
    headings = page.run("[...document.querySelectorAll('h4')].map(heading => heading.textContent)")
    assert set(headings) == set(CLASSES)
    assert page.run("document.scripts.length") == 2


@pytest.mark.parametrize("word", ["All", "Method"])
def test_a_click_sorts_and_a_second_click_reverses(page: Page, word: str) -> None:
    sort = "[...document.querySelectorAll('table.sortable')].map(table => table.caption.textContent)"
    table = page.run(sort).index("Clustering accuracy (v2, percent) on the unlabelled images of mine")
    heads = page.run(
        f"[...document.querySelectorAll('table.sortable')[{table}].tHead.rows[0].cells].map(cell => cell.textContent)"
    )
    column = heads.index(word)
    page.run(f"document.querySelectorAll('table.sortable')[{table}].id = 'this'")
    before = texts(page, table, column)
    key = (lambda text: float(text.split(" ")[0])) if word == "All" else str.casefold
    for order, way in (("ascending", False), ("descending", True), ("ascending", False)):
        page.click(f"#this th:nth-child({column + 1}) button")
        assert texts(page, table, column) == sorted(before, key=key, reverse=way)
        states = page.run("[...document.querySelectorAll('#this th')].map(head => head.getAttribute('aria-sort'))")
        assert states == ["none"] * column + [order] + ["none"] * (len(heads) - column - 1)
    assert len(set(before)) > 1


def test_the_keyboard_sorts_too(page: Page) -> None:
    page.run("document.querySelector('table.sortable th button').focus()")
    page.press("Enter")
    assert page.run("document.querySelector('table.sortable th').getAttribute('aria-sort')") == "ascending"


def test_missing_values_are_sorted_last(page: Page) -> None:
    """The main table over several benchmarks has runs of the first one only; its columns have two headings."""
    captions = page.run("[...document.querySelectorAll('table.sortable')].map(table => table.caption.textContent)")
    table = next(n for n, caption in enumerate(captions) if "Stanford Cars" in caption)
    page.run(f"document.querySelectorAll('table.sortable')[{table}].id = 'several'")
    for values in (["60.0", "61.0", "62.0"], ["62.0", "61.0", "60.0"]):
        page.click("#several thead tr:last-child th:nth-child(3) button")
        assert [text.partition(" ")[0] for text in texts(page, table, 2)] == [*values, "–"]
    assert set(texts(page, table, 5)) == {"–"}
    apart = "[...document.querySelector('#several').tBodies[1].rows].map(row => row.cells[0].textContent)"
    names = ("k-means", "RS+", "UNO+", "ORCA", "XCon", "PromptCAL", "DCCL", "SimGCD")
    assert page.run(apart) == ["Published, not run here", *(f"{name} (published)" for name in names)]


def test_a_phone_scrolls_only_vertically(chromium: Page, report: Path) -> None:
    chromium.open(report, PHONE)
    chromium.run("document.querySelectorAll('details').forEach(details => { details.open = true })")
    assert chromium.run("document.documentElement.scrollWidth") == PHONE
    assert chromium.run("document.documentElement.clientWidth") == PHONE
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert chromium.run(f"{boxes}.filter(box => box.scrollWidth > box.clientWidth).length") > 0  # wide tables, in boxes
    others = "[...document.querySelectorAll('body *:not(.scroll *):not(.tip *):not(svg *)')]"
    assert chromium.run(f"Math.max(...{others}.map(one => one.getBoundingClientRect().right))") <= PHONE
    assert chromium.run("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def test_hovering_shows_the_image(page: Page) -> None:
    page.hover(".embedding use:nth-of-type(8)")
    data = json.loads(page.run("document.querySelector('.embedding script').textContent"))
    true = data["colourings"]["true class"]
    shown = page.run("document.querySelector('.tip:not([hidden]) .tip-text').textContent")
    near = [f"true class: {true['labels'][true['of'][n]]}\n" for n, text in enumerate(data["texts"]) if text in shown]
    assert any(shown.startswith(text) for text in near)
    box = "document.querySelector('.tip').getBoundingClientRect()"
    assert page.run(f"{box}.left") >= 0
    assert page.run(f"{box}.right") <= page.run("document.documentElement.clientWidth")


def test_colours_change_with_the_selected_property(page: Page) -> None:
    fills = "[...document.querySelectorAll('.embedding use')].map(mark => mark.getAttribute('fill'))"
    data = json.loads(page.run("document.querySelector('.embedding script').textContent"))["colourings"]
    for number, name in ((2, "matched class"), (1, "true class")):
        page.click(f".choices button:nth-child({number})")
        assert page.run(fills) == [data[name]["colours"][of] for of in data[name]["of"]]
        assert page.run("document.querySelectorAll('.legend:not([hidden])').length") == 1


def test_a_link_opens_its_folded_section(chromium: Page, report: Path) -> None:
    chromium.open(report, DESK)
    folded = "document.querySelector('main details:not([open])')"
    chromium.click(f"nav a[href='#{chromium.run(folded + '.id')}']")
    chromium.run("new Promise(done => setTimeout(done, 100))")
    assert chromium.run("document.getElementById(location.hash.slice(1)).open")
