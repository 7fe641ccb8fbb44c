"""Figures: valid files with reproducible bytes and the expected content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ctxgcd.catalogue.entries import METHODS, Term
from ctxgcd.errors import UserError
from ctxgcd.plots import curves, style
from ctxgcd.plots import embedding as embedding_module
from ctxgcd.plots import sensitivity as sensitivity_module
from ctxgcd.plots.curves import late_start, training_curves
from ctxgcd.plots.embedding import UNMATCHED, embedding, project
from ctxgcd.plots.palette import class_colors, in_places
from ctxgcd.plots.sensitivity import sensitivity_curves
from ctxgcd.plots.style import figure, plain
from ctxgcd.tables.aggregate import LONG_COLUMNS


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the figures that are saved."""
    figures: list[Any] = []

    @contextmanager
    def kept(out: Path, width: float, height: float) -> Iterator[Figure]:
        with figure(out, width, height) as drawing:
            yield drawing
        figures.append(drawing)

    for module in (curves, sensitivity_module, embedding_module):
        monkeypatch.setattr(module, "figure", kept)
    return figures


def history(shift: float = 0.0, start: int | None = 3, epochs: int = 6) -> pd.DataFrame:
    epoch = np.arange(epochs)
    terms = ("loss", "info_nce", "sup_con", "distill", "entropy", "cls")
    falling = dict.fromkeys(terms, shift + 1 / (1 + epoch))
    context = np.where(epoch >= (epochs if start is None else start), 0.5 + shift, np.nan)
    return pd.DataFrame({"epoch": epoch, **falling, "L_n": context, "L_c": context})


def sensitivity_frame(published: float = 61.0) -> pd.DataFrame:
    rows = [("full-paper", "lambda_n", 0.1), ("full-paper+lambda_n=0.3", "lambda_n", 0.3)]
    rows += [("full-paper+k=5", "k", 5.0), ("full-paper", "k", 10.0)]
    numbers = {f"{q}_mean": 60.0 for q in ("all", "old", "new")} | {f"{q}_std": 1.0 for q in ("all", "old", "new")}
    numbers |= {f"{q}_published": published for q in ("all", "old", "new")}
    what = {"benchmark": "cub", "set": "unlabelled", "metric": "v2", "n": 3}
    lines = [what | numbers | {"method": m, "parameter": p, "value": v} for m, p, v in rows]
    return pd.DataFrame(lines, columns=[*LONG_COLUMNS, "parameter", "value"])


def blobs(classes: int, each: int = 12) -> tuple[np.ndarray, list[str], np.ndarray]:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), each)
    centres = random.normal(0, 8, (classes, 8))
    return centres[y] + random.normal(0, 0.5, (len(y), 8)), [f"c{i}" for i in y], y < classes // 2


def is_good_png(path: Path) -> bool:
    with Image.open(path) as image:
        image.load()
        shades = np.asarray(image.convert("L"))
        return image.format == "PNG" and round(image.info["dpi"][0]) == style.DPI and bool(np.ptp(shades) > 150)


def test_figures_have_reproducible_bytes_for_all_user_settings(tmp_path: Path) -> None:
    features, names, old = blobs(3)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        training_curves({"full-paper": [history(), history(0.2)]}, folder / "curves.png", "Loss")
        sensitivity_curves(sensitivity_frame(), folder / "sensitivity.png", "Sensitivity")
        embedding(features, names, old, names, folder / "embedding.png", "Features", seed=0)
        mpl.rcParams["font.size"] = 30  # affects only the second call
    mpl.rcdefaults()
    for name in ("curves.png", "sensitivity.png", "embedding.png"):
        first, second = (folder / name for folder in folders)
        assert is_good_png(first)
        assert first.read_bytes() == second.read_bytes()
    assert len(list(folders[0].iterdir())) == 3  # no temporary file is left


def test_an_error_while_drawing_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    out.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), figure(out, 2, 2):
        raise ZeroDivisionError
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_curves_show_mean_and_range_and_where_the_context_starts(drawn: list[Any], tmp_path: Path) -> None:
    training_curves(
        {"simgcd": [history(start=None)], "full-paper": [history(0.0), history(0.4)]}, tmp_path / "c.png", ""
    )
    axes = drawn[0].axes
    assert len(axes) == 8
    dotted, simgcd, paper = axes[0].lines
    assert dotted.get_xdata() == [3, 3]
    np.testing.assert_allclose(simgcd.get_ydata(), 1 / (1 + np.arange(6)))
    np.testing.assert_allclose(paper.get_ydata(), 0.2 + 1 / (1 + np.arange(6)))
    band = axes[0].collections[1].get_datalim(axes[0].transData)
    assert (band.ymin, band.ymax) == pytest.approx((1 / 6, 1.4))
    assert [line.get_xdata().tolist() for line in axes[6].lines[1:]] == [
        [],
        [3, 4, 5],
    ]  # L_n acts in one row only
    labels = [text.get_text() for text in drawn[0].legends[0].texts]
    assert labels == ["SimGCD", "Full method (paper)", "further terms start (epoch 3)"]


def test_terms_that_no_run_has_get_no_panel(drawn: list[Any], tmp_path: Path) -> None:
    training_curves({"simgcd": [history(start=None, epochs=1)]}, tmp_path / "c.png", "")
    assert len(drawn[0].axes) == 6
    assert drawn[0].axes[0].lines[0].get_marker() == "o"  # a line of one epoch would be invisible
    assert late_start([history(start=None)]) is None
    assert late_start([history(start=4), history(start=2)]) == 2


def test_a_term_of_a_method_added_after_the_others_has_a_panel(
    drawn: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = replace(METHODS["simgcd"], terms={**METHODS["simgcd"].terms, "proto": Term("proto", "prototype term")})
    monkeypatch.setitem(METHODS, "protoema", added)
    training_curves({"protoema": [history(start=None).assign(proto=1.0)]}, tmp_path / "c.png", "")
    assert [axis.get_title(loc="left") for axis in drawn[0].axes][-1] == "prototype term"


def test_the_health_of_a_method_has_a_panel(drawn: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "healthy", replace(METHODS["simgcd"], health={"pairs": "pairs in a step"}))
    frame = history(start=None).assign(pairs=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    training_curves({"simgcd": [history(start=None)], "healthy": [frame]}, tmp_path / "c.png", "")
    panel = drawn[0].axes[-1]
    assert panel.get_title(loc="left") == "pairs in a step"
    assert [line.get_ydata().tolist() for line in panel.lines] == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


def test_curves_without_a_history_are_refused(tmp_path: Path) -> None:
    nothings: list[dict[str, list[pd.DataFrame]]] = [{}, {"simgcd": []}, {"simgcd": [history(epochs=0)]}]
    for nothing in nothings:
        with pytest.raises(UserError, match=r"c\.png has no training history to draw"):
            training_curves(nothing, tmp_path / "c.png", "")


def test_sensitivity_shows_measured_filled_and_published_hollow(drawn: list[Any], tmp_path: Path) -> None:
    sensitivity_curves(sensitivity_frame(), tmp_path / "s.png", "")
    first, second = drawn[0].axes
    assert [axis.get_xlabel() for axis in (first, second)] == [r"$\lambda_n$", "k"]
    assert first.lines[0].get_xdata() == [0.1, 0.1]  # the main run
    assert second.lines[0].get_xdata() == [10, 10]
    hollow = [line for line in first.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_ydata()) for line in hollow] == [[61.0, 61.0]] * 3
    assert len(first.containers) == 3
    # All, Old and New of the same value stand beside each other, with their published points, around that value.
    at = [list(bars.lines[0].get_xdata()) for bars in first.containers]
    assert at == [list(line.get_xdata()) for line in hollow]
    np.testing.assert_allclose(np.mean(at, axis=0), [0.1, 0.3])
    assert all(0 < right - left < 0.01 for one, next_ in pairwise(at) for left, right in zip(one, next_, strict=True))
    assert list(first.get_xticks()) == [0.1, 0.3]
    assert [text.get_text() for text in drawn[0].legends[0].texts] == [
        "All",
        "Old",
        "New",
        "published",
        "main run",
    ]


@pytest.mark.parametrize(("seeds", "text"), [(3, "mean ± std over seeds"), (1, "one seed")])
def test_the_title_of_a_sensitivity_figure_says_what_is_drawn(
    drawn: list[Any], tmp_path: Path, seeds: int, text: str
) -> None:
    sensitivity_curves(sensitivity_frame().assign(n=seeds), tmp_path / "s.png", "Sensitivity")
    assert drawn[0].get_suptitle() == f"Sensitivity ({text})"


def test_sensitivity_without_published_values_or_runs(drawn: list[Any], tmp_path: Path) -> None:
    sensitivity_curves(sensitivity_frame(float("nan")), tmp_path / "s.png", "")
    assert [text.get_text() for text in drawn[0].legends[0].texts] == ["All", "Old", "New", "main run"]
    with pytest.raises(UserError, match="no sensitivity run"):
        sensitivity_curves(sensitivity_frame().iloc[:0], tmp_path / "s.png", "")


def test_embedding_names_few_classes_with_old_as_circles(drawn: list[Any], tmp_path: Path) -> None:
    features, names, old = blobs(4)
    predicted = [None if name == "c3" else name for name in names]
    embedding(features, names, old, predicted, tmp_path / "e.png", "", seed=0)
    true, guess = drawn[0].axes
    handles = true.get_legend().legend_handles
    assert [h.get_label() for h in handles] == ["c0", "c1", "c2", "c3"]
    assert [h.get_marker() for h in handles] == ["o", "o", "^", "^"]
    assert [len(c.get_offsets()) for c in true.collections] == [24, 24]  # old, new
    assert [t.get_text() for t in guess.get_legend().texts] == ["c0", "c1", "c2", UNMATCHED]
    same = [h.get_color() for h in guess.get_legend().legend_handles[:3]]
    assert same == [h.get_color() for h in handles[:3]]


def test_embedding_counts_many_classes_and_states_a_sample(drawn: list[Any], tmp_path: Path) -> None:
    features, names, old = blobs(14, each=4)
    embedding(features, names, old, [int(n[1:]) for n in names], tmp_path / "e.png", "T", seed=0, max_points=50)
    true, guess = drawn[0].axes
    assert true.get_legend() is None
    assert true.get_xlabel() == "7 old and 7 new classes: too many for a legend"
    assert guess.get_title(loc="left") == "by predicted cluster (separate colours)"
    assert drawn[0].get_suptitle() == "T (t-SNE, 50 of 56 images, sampled at random)"
    assert sum(len(c.get_offsets()) for c in true.collections) == 50


def lab(color: str) -> np.ndarray:
    """Return a colour in CIELAB (D65), where distances are perceptual; about 2 is the smallest visible one."""
    rgb = np.array(mpl.colors.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("count", [2, 10, 12, 13, 50, 200])
def test_neighbours_among_the_classes_look_different(count: int) -> None:
    colors = class_colors([f"c{i}" for i in range(count)])
    assert list(colors) == [f"c{i}" for i in range(count)]
    assert len(set(colors.values())) == count
    places = np.array([lab(color) for color in colors.values()])
    assert np.linalg.norm(np.diff(places, axis=0), axis=1).min() > 70


def test_the_order_of_classes() -> None:
    true, old = ["b", "a", "n", "b", "m"], [True, True, False, True, False]
    assert in_places(true, old, ["a", "cluster 10", "cluster 9", "b"]) == (
        ["a", "b"],
        ["m", "n"],
        ["cluster 9", "cluster 10"],
    )
    assert in_places([], [], ["10", "9"]) == ([], [], ["9", "10"])


def test_projection_keeps_classes_together_and_depends_on_its_seed() -> None:
    features, names, _ = blobs(3)
    points = project(features, seed=0)
    label = np.array(names)
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    assert (label[apart.argmin(1)] == label).mean() > 0.95
    assert np.array_equal(points, project(features, seed=0))


@pytest.mark.parametrize(
    ("features", "message"),
    [(np.zeros((3, 5)), "at least 4"), (np.zeros((9, 1)), "at least 4"), (np.full((9, 2), np.nan), "finite")],
)
def test_features_that_cannot_be_projected(features: np.ndarray, message: str, tmp_path: Path) -> None:
    n = len(features)
    with pytest.raises(UserError, match=message):
        embedding(features, ["a"] * n, [True] * n, ["a"] * n, tmp_path / "e.png", "", seed=0)
    with pytest.raises(UserError, match="lengths"):
        embedding(features, ["a"], [True] * n, ["a"] * n, tmp_path / "e.png", "", seed=0)


def test_any_text_can_be_drawn(tmp_path: Path) -> None:
    assert plain("a$b\n c", 40) == r"a\$b c"
    assert plain("x" * 50, 10) == "x" * 9 + "…"
    assert plain("without L_n at lambda_c") == r"without $L_n$ at $\lambda_c$"
    features, names, old = blobs(4)
    wild = {"c0": "$\\frac{", "c1": "_hidden", "c2": "a\nb <b>&%", "c3": "\\$x^$ é"}
    named = [wild[name] for name in names]
    embedding(features, named, old, named, tmp_path / "e.png", "$\\bad_{ 100%", seed=0)
    assert is_good_png(tmp_path / "e.png")
