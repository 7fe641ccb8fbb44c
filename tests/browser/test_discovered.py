"""The report of a discovery in a headless Chromium: its images, and the corrections made in it."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.devtools import NAMES as PROGRAMS
from tests.browser.devtools import Page, find
from tests.helpers.discovered import write_discovered

PHONE, DESK = 390, 1400
NAMES = ["robin", 'rose, "wild"', "new-1", "new-2", "new-3"]
SIZES = [6, 5, 70, 30, 14]
ODD = 'deep/a #1, 50% "ü"?.png'  # an image's name
COUNT = 240
LABELLED = [f"labelled/{number:03d}.jpg" for number in range(COUNT)]  # robins
BY_HAND = "class 2/003.jpg"  # its sixth image
TIF = "scan.tif"  # which Chromium does not show

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not find(), reason=f"none of {', '.join(PROGRAMS)} is installed (Debian: apt install chromium)"),
]


def paths_of(c: int) -> list[str]:
    """The images of a class, the most typical one first."""
    first = {2: [ODD, TIF]}.get(c, [])
    return [*first, *(f"class {c}/{number:03d}.jpg" for number in range(SIZES[c] - len(first)))]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = {path: c for c in range(len(NAMES)) for path in paths_of(c)}
    labelled = dict.fromkeys(LABELLED, 0)
    return write_discovered(
        tmp_path_factory.mktemp("discovered"), images, NAMES, 2, labelled=labelled, by_hand={BY_HAND}
    )


@pytest.fixture(params=[DESK, PHONE])
def page(request: pytest.FixtureRequest, chromium: Page, report: Path) -> Iterator[Page]:
    """The report in a window of a desktop and of a phone, without corrections before and after."""
    chromium.open(report, request.param)
    yield chromium
    chromium.run("localStorage.clear()")
    assert chromium.of("Runtime.exceptionThrown") == []
    assert chromium.of("Log.entryAdded") == []


def card(number: int) -> str:
    return f"article[data-class='{number}']"


def opened(page: Page, number: int) -> list[str]:
    """Open all images of a class; return the paths of its buttons."""
    page.click(f"{card(number)} summary")
    settle(page)
    buttons = f'[...document.querySelectorAll("{card(number)} .every button")]'
    found: list[str] = page.run(f"{buttons}.map(button => button.title)")
    return [title.rpartition(f", {NAMES[number]}")[0] for title in found]


def facts(page: Page) -> list[str]:
    """What the viewer says of the enlarged image."""
    found: list[str] = page.run("[...document.querySelectorAll('.viewer .facts span')].map(one => one.textContent)")
    return found


def settle(page: Page) -> None:
    page.run("new Promise(done => setTimeout(done, 150))")


def enlarge(page: Page, number: int, place: int) -> None:
    page.click(f"{card(number)} .every li:nth-child({place + 1}) button")
    settle(page)


def viewed(page: Page) -> str | None:
    found: str | None = page.run("document.querySelector('.viewer[open] #viewer-path')?.textContent")
    return found


def status(page: Page) -> str:
    return str(page.run("document.querySelector('.corrections [role=status]').textContent"))


def name(page: Page, number: int, text: str) -> None:
    """Write a name into the field of a class, and leave the field."""
    field = f'document.querySelector("{card(number)} input")'
    page.run(f"{field}.focus()")
    page.run(f"{field}.select()")
    page.write(text) if text else page.run(f"{field}.value = ''")
    page.run(f"{field}.dispatchEvent(new Event('change'))")


def downloaded(page: Page, to: Path) -> list[list[str]]:
    """Download the corrections and return the rows below the header."""
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(to))
    page.click("[data-do=download]")
    end = time.monotonic() + 20
    while not (to / "corrections.csv").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    with open(to / "corrections.csv", newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["action", "image", "class", "target"]
    return rows


# -- images ----------------------------------------------------------------------------------------------


def test_all_images_of_a_class_are_shown_as_one_scrolls(page: Page) -> None:
    assert opened(page, 2) == paths_of(2)
    painted = "[...document.querySelectorAll('.pictures button')].filter(button => button.style.backgroundImage)"
    before = page.run(f"{painted}.length")
    assert 0 < before < page.run("document.querySelectorAll('.pictures button').length")
    page.run("document.querySelector('.image-list').scrollIntoView()")
    settle(page)
    assert page.run(f"{painted}.length") > before
    addresses = f"[...new Set({painted}.map(button => button.style.backgroundImage.slice(5, -2)))]"
    width = "async src => { const image = new Image(); image.src = src; await image.decode(); return image.width }"
    assert set(page.run(f"Promise.all({addresses}.map({width}))")) == {8 * 96}


def test_labelled_images_of_a_class_are_shown_as_one_scrolls(page: Page, tmp_path: Path) -> None:
    """They are marked, and cannot be corrected, because `ctxgcd label` refuses that."""
    head = f"{card(0)} .labelled"
    assert page.run(f'document.querySelector("{head} summary").textContent') == f"{COUNT} labelled images"
    page.click(f"{head} summary")
    settle(page)
    buttons = f'[...document.querySelectorAll("{head} button")]'
    assert page.run(f"{buttons}.map(button => button.title)") == [f"{path}, robin, labelled" for path in LABELLED]
    assert page.run(f"{buttons}.every(button => getComputedStyle(button, '::before').content === '\"label\"')")
    painted = f"{buttons}.filter(button => button.style.backgroundImage).length"
    assert 0 < page.run(painted) < COUNT
    page.run(f"{buttons}[{COUNT - 1}].scrollIntoView()")
    settle(page)
    assert page.run(f"{buttons}[{COUNT - 1}].style.backgroundImage")
    page.click(f"{head} li:nth-child({COUNT}) button")
    settle(page)
    assert viewed(page) == LABELLED[-1]
    assert facts(page) == ["robin", f"{COUNT} of {COUNT}", "labelled"]
    visible = "[...document.querySelectorAll('.viewer [data-do], .given')].filter(one => one.checkVisibility())"
    assert page.run(f"{visible}.map(one => one.dataset.do ?? one.className)") == [
        "note given",
        "previous",
        "next",
        "close",
    ]
    for key in "cxmu":
        page.press(key)
    assert page.run("localStorage.length") == 0
    assert viewed(page) == LABELLED[-1]
    page.press("ArrowLeft")
    assert viewed(page) == LABELLED[-2]
    assert page.run("document.documentElement.scrollWidth") == page.run("document.documentElement.clientWidth")


def test_images_that_were_corrected_before_are_marked(page: Page, tmp_path: Path) -> None:
    """They can be corrected again."""
    assert opened(page, 2)[5] == BY_HAND
    marked = f'[...document.querySelectorAll("{card(2)} .every [data-labelled]")].map(one => one.title)'
    assert page.run(marked) == [f"{BY_HAND}, new-1, labelled by hand"]
    enlarge(page, 2, 5)
    assert facts(page) == ["new-1", "6 of 70", "labelled by hand"]
    page.press("x")
    page.press("Escape")
    assert page.run(marked) == []
    assert downloaded(page, tmp_path) == [["out", BY_HAND, "", ""]]


def test_uncertain_images_are_shown_with_their_names(page: Page) -> None:
    least = [*paths_of(4)[::-1], *paths_of(3)[::-1]]
    entries = "[...document.querySelectorAll('.image-list > li')]"
    assert page.run(f"{entries}.map(entry => entry.querySelector('p').textContent)") == [*least, *paths_of(2)[:-7:-1]]
    assert page.run(f"{entries}.every(entry => entry.querySelector('button'))")
    page.click(".image-list button")
    settle(page)
    assert viewed(page) == least[0]
    page.press("ArrowRight")
    assert viewed(page) == least[1]


def test_a_click_enlarges_the_original(page: Page, report: Path) -> None:
    opened(page, 2)
    enlarge(page, 2, 0)
    assert viewed(page) == ODD
    original = (report.parent.parent / "photos" / ODD).resolve()
    link = "document.querySelector('.viewer a').href"
    assert Path(page.run(f"decodeURIComponent(new URL({link}).pathname)")) == original
    image = "document.querySelector('.viewer img')"
    page.run(f"{image}.decode()")
    assert not page.run(f"{image}.hidden")
    assert page.run(f"{image}.naturalWidth") >= 100  # more than a thumbnail
    urls = {event["request"]["url"] for event in page.of("Network.requestWillBeSent")}
    files = {url for url in urls if not url.startswith(("data:", "blob:"))}
    assert {url for url in files if not url.endswith("report.html")} == {page.run(link)}
    assert page.run("document.querySelector('.viewer').getBoundingClientRect().right") <= page.run("innerWidth")


def test_an_original_that_cannot_be_shown_has_its_thumbnail(page: Page) -> None:
    opened(page, 2)
    enlarge(page, 2, 1)
    assert viewed(page) == TIF
    settle(page)
    assert page.run("document.querySelector('.viewer img').hidden")
    assert not page.run("document.querySelector('.lost').hidden")
    assert page.run("document.querySelector('.stage').style.backgroundImage").startswith('url("blob:')


def test_names_are_readable_and_nothing_is_wider_than_the_window(page: Page) -> None:
    opened(page, 2)
    width = page.run("document.documentElement.clientWidth")
    assert page.run("document.documentElement.scrollWidth") == width
    page.click(f"{card(0)} .labelled summary")
    settle(page)
    sizes = "['h4', '.image-list p', '.facts', '.naming input', 'summary']"
    fonts = page.run(f"{sizes}.map(of => parseFloat(getComputedStyle(document.querySelector(of)).fontSize))")
    assert min(fonts) >= 13
    others = "[...document.querySelectorAll('main *:not(.scroll *):not(.tip *):not(svg *)')]"
    assert page.run(f"Math.max(...{others}.map(one => one.getBoundingClientRect().right))") <= width


# -- corrections -----------------------------------------------------------------------------------------


def test_images_are_corrected_with_the_mouse(page: Page, tmp_path: Path) -> None:
    paths = paths_of(2)
    opened(page, 2)
    enlarge(page, 2, 0)
    page.click("[data-do=confirm]")
    assert viewed(page) == paths[1]  # the next one
    page.click("[data-do=out]")
    page.run("document.querySelector('.viewer input').value = ' owl, \"barn\" '")
    page.click("[data-do=move]")
    page.run("document.querySelector('.viewer input').value = 'robin'")
    page.click("[data-do=move]")
    page.click("[data-do=close]")
    assert viewed(page) is None
    marks = page.run(f'[...document.querySelectorAll("{card(2)} .every [data-mark]")].map(one => one.dataset.mark)')
    assert marks == ["confirm", "out", "move", "move"]
    assert status(page) == "4 corrections."
    assert downloaded(page, tmp_path) == [
        ["confirm", paths[0], "new-1", ""],
        ["out", paths[1], "", ""],
        ["move", paths[2], "", 'owl, "barn"'],
        ["move", paths[3], "", "robin"],
    ]
    assert "ctxgcd label OUT corrections.csv" in status(page)


def test_images_are_corrected_with_the_keyboard(page: Page, tmp_path: Path) -> None:
    paths = paths_of(3)
    opened(page, 3)
    page.run(f'document.querySelector("{card(3)} .every button").focus()')
    page.press("Enter")
    for key in "cxm":
        page.press(key)
    page.write("new-1")
    page.press("Enter")
    page.press("x")
    page.press("ArrowLeft")
    page.press("u")  # not thrown out after all
    assert viewed(page) == paths[3]
    page.press("Escape")
    settle(page)
    assert viewed(page) is None
    assert page.run("document.activeElement.title") == f"{paths[3]}, new-2"
    assert downloaded(page, tmp_path) == [
        ["confirm", paths[0], "new-2", ""],
        ["out", paths[1], "", ""],
        ["move", paths[2], "", "new-1"],
    ]


def test_a_second_mark_replaces_the_first_one(page: Page, tmp_path: Path) -> None:
    opened(page, 3)
    for key in ("x", "c"):
        enlarge(page, 3, 0)
        page.press(key)
        page.press("Escape")
        settle(page)
    enlarge(page, 3, 1)
    page.press("m")
    page.write("new-2")  # where it is
    page.press("Enter")
    page.press("Escape")
    confirmed = [["confirm", path, "new-2", ""] for path in paths_of(3)[:2]]
    assert downloaded(page, tmp_path) == confirmed


def test_classes_are_named_and_merged(page: Page, tmp_path: Path) -> None:
    name(page, 2, 'tulip, "red"')
    heading = f'document.querySelector("{card(2)} h4").textContent'
    assert page.run(heading) == 'tulip, "red" (new-1)'
    name(page, 3, 'tulip, "red"')
    assert status(page) == 'new-2 is merged into tulip, "red". 2 corrections.'
    name(page, 4, "new-2")  # merged already, so into the class that is left
    opened(page, 3)
    enlarge(page, 3, 0)
    page.press("c")
    page.press("Escape")
    path = paths_of(3)[0]
    assert downloaded(page, tmp_path) == [
        ["confirm", path, "new-2", ""],
        ["name", "", "new-1", 'tulip, "red"'],
        ["merge", "", "new-2", "new-1"],
        ["merge", "", "new-3", "new-1"],
    ]
    name(page, 2, "new-3")  # itself
    assert page.run(heading) == 'tulip, "red" (new-1)'


def test_a_wrong_class_is_refused_and_a_name_deleted(page: Page) -> None:
    name(page, 2, "new-9")
    assert status(page).startswith("There is no class new-9.")
    assert page.run("localStorage.length") == 0
    name(page, 2, "tulip")
    name(page, 2, "")
    assert status(page) == "new-1 has no other name. 0 corrections."
    opened(page, 2)
    enlarge(page, 2, 0)
    page.press("m")
    page.write("new-9")
    page.press("Enter")
    assert viewed(page) == ODD  # still
    assert page.run("localStorage.length") == 0


def test_similar_classes_are_merged_by_a_button(page: Page, tmp_path: Path) -> None:
    button = "document.querySelector('[data-merge]')"
    words = page.run(f"{button}.textContent").removeprefix("One class: merge ").split(" into ")
    page.click("[data-merge]")
    assert downloaded(page, tmp_path) == [["merge", "", *words]]


def test_corrections_stay_until_they_are_undone(page: Page, report: Path) -> None:
    name(page, 2, "tulip")
    opened(page, 3)
    enlarge(page, 3, 0)
    page.press("x")
    before: Any = page.run("innerWidth")
    page.open(report, before)
    assert status(page) == "2 corrections."
    assert page.run(f'document.querySelector("{card(2)} h4").textContent') == "tulip (new-1)"
    for left in (1, 0):
        page.click("[data-do=undo]")
        assert status(page) == f"The last correction is taken back. {left} correction{'s' * (left != 1)}."
    assert page.run(f'document.querySelector("{card(2)} h4").textContent') == "new-1"
    assert page.run("localStorage.length") == 0


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_class_with_a_name_is_corrected_by_its_number(chromium: Page, tmp_path: Path, width: int) -> None:
    images = {f"{c}/{number}.jpg": c for c in range(4) for number in range(4)}
    page = write_discovered(
        tmp_path, images, ["robin", "new-1", "new-2", "new-3"], 1, {"new-1": "tulip", "new-3": "owl"}
    )
    chromium.open(page, width)
    heading = f'document.querySelector("{card(1)} h4").textContent'
    assert chromium.run(heading) == "tulip (new-1)"
    name(chromium, 2, "tulip")
    assert status(chromium) == "new-2 is merged into tulip. 1 correction."
    name(chromium, 1, "rose")
    name(chromium, 3, "")  # its number again
    assert status(chromium) == "new-3 has no other name. 3 corrections."
    assert chromium.run(heading) == "rose (new-1)"
    assert downloaded(chromium, tmp_path) == [
        ["merge", "", "new-2", "new-1"],
        ["name", "", "new-1", "rose"],
        ["name", "", "new-3", "new-3"],
    ]
    name(chromium, 1, "tulip")
    assert status(chromium) == "new-1 is called tulip. 2 corrections."
    chromium.run("localStorage.clear()")
