"""Methods in the catalogue: modifiers, terms that can be left out, sections and defaults."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ctxgcd.catalogue import entries
from ctxgcd.catalogue.sections import Closed
from ctxgcd.config import Params, completed, parse
from ctxgcd.errors import UserError
from ctxgcd.methods.step import Batch
from ctxgcd.names import NOT_IN_PAPER
from ctxgcd.pipeline import tables, targets
from ctxgcd.pipeline.identity import identity
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.tables import table_runs
from ctxgcd.plan.sizes import disk_of
from ctxgcd.plan.work import images_around, images_in
from ctxgcd.tables.display import method_name
from ctxgcd.tables.published import published_value
from tests.helpers.params import OTHERWHERE, edited
from tests.helpers.places import ROOT
from tests.helpers.refusals import error_of, warned


class Louder:
    """A modifier, mixed in before the class of a method."""

    def learning_rate(self, epoch: int) -> float:
        return 2 * super().learning_rate(epoch)  # type: ignore[misc, no-any-return]


def test_a_modifier_is_a_word_of_a_row(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries.MODIFIERS, "louder", entries.Modifier("Louder", f"{__name__}.Louder"))
    assert "unknown modifier 'lauder'; did you mean 'louder'?" in error_of(lambda: parse_row("simgcd+lauder"))
    name = parse_row("full-paper+louder+k=5-without-n")
    assert (name.modifiers, name.overrides, name.terms) == (["louder"], {"k": 5}, ["L_c"])
    plain, louder = (resolve(params, "fashion", row, 0) for row in ("simgcd", "simgcd+louder"))
    assert {key for key in louder if louder[key] != plain.get(key)} == {"row", "modifiers"}
    assert identity(plain) != identity(louder)
    changed = entries.load("simgcd", ["louder"])(louder)
    assert changed.learning_rate(3) == 2 * entries.load("simgcd")(plain).learning_rate(3)
    assert "sets a parameter twice" in error_of(lambda: parse_row("simgcd+louder+louder"))
    monkeypatch.setitem(entries.MODIFIERS, "lou", entries.Modifier("Lou", f"{__name__}.Louder"))
    assert (
        method_name("full-paper+louder+k=5+lou-without-n") == "Full method (paper) + Louder + Lou, without L_n, k = 5"
    )
    assert published_value("main_ssb", "cub", "simgcd+louder") is None
    pairs = {"simgcd+louder+lr=0.1+lou": "simgcd+lr=0.1"}  # the lr of cub's protocol
    other = params.model_copy(update={"rows": params.rows.model_copy(update={"open_choices": pairs})})
    assert tables.table_pairs(other, "unknowns", "cub") == {"simgcd+louder+lou": "simgcd"}


class MarginValues(Closed):
    lambda_m: float
    wide: int = 3  # added later


def margin(**changes: Any) -> entries.Entry:
    """A method without variants whose term a row can leave out; its checks read a value that has a default."""
    return entries.Entry(
        label="Margins",
        cls="ctxgcd.methods.simgcd.SimGCD",
        values=MarginValues,
        extends="simgcd",
        terms={"margin": entries.Term("wide margin", "m")},
        ablated={"m": "margin"},
        around=lambda p, epoch: p["wide"] * epoch,
        head_values=lambda p, dim: p["wide"] * dim,
        fault=lambda p: "wide is too large" if p["wide"] > 9 else "",
        too_few=lambda p, images: "wide is 8" if p["wide"] == 8 else "",
        warning=lambda p: f"wide is {p['wide']}",
        **changes,
    )


@pytest.fixture
def with_margin(committed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Params:
    """params.yaml with the sections of `margin2`, and of `wider`, which extends it."""
    monkeypatch.setitem(entries.METHODS, "margin2", margin())
    wider = entries.Entry("Wider", "ctxgcd.methods.simgcd.SimGCD", entries.KMeansValues, extends="margin2")
    monkeypatch.setitem(entries.METHODS, "wider", wider)
    committed["methods"] |= {"margin2": {"lambda_m": 0.5}, "wider": {"restarts": 1}}
    return parse(committed)


def test_terms_of_any_method_can_be_left_out(with_margin: Params) -> None:
    found = {row: resolve(with_margin, "cub", row, 0) for row in ("margin2", "margin2-zero", "margin2-without-m")}
    whole, zero, without = found.values()
    assert (whole["lambda_m"], zero["lambda_m"]) == (0.5, 0.0)
    assert "lambda_m" not in without
    assert [p["context_terms"] for p in found.values()] == [["margin"], ["margin"], []]
    assert [method_name(row) for row in found] == ["Margins", "Margins, weight 0", "Margins, without wide margin"]
    for row in ("margin2-without-n", "margin2-paper"):
        assert "write METHOD[+key=value...][-without-m|-zero]" in error_of(lambda row=row: parse_row(row))  # type: ignore[misc]


def test_functions_of_an_entry_see_default_values(with_margin: Params) -> None:
    p = resolve(with_margin, "cub", "margin2", 0)
    assert "wide" not in p
    assert "wide is too large" in error_of(lambda: resolve(with_margin, "cub", "margin2+wide=10", 0))
    assert "wide is 8" in error_of(lambda: resolve(with_margin, "cub", "margin2+wide=8", 0))
    run = "results/runs/cub/margin2/seed0/metrics.json"
    assert targets.check(with_margin, [run]) == ["cub/margin2: wide is 3"]
    assert images_around(p, 2) == 6
    entry = with_margin.benchmarks["cub"]
    (of_margin, of_simgcd) = (
        disk_of(entry, images_in(entry), 256, [resolve(with_margin, "cub", row, 0)]).results
        for row in ("margin2", "simgcd+entropy_weight=1.0")
    )
    heads = entries.METHODS["simgcd"].head_values(p, 768)
    assert (of_margin or 0) - (of_simgcd or 0) == 4 * (3 * 768 - heads)
    assert {"wide": 3, "tail": "blocks", "loss_group": 0}.items() <= completed(p).items()


def test_a_method_reads_the_sections_of_all_that_it_extends(with_margin: Params) -> None:
    p = resolve(with_margin, "cub", "wider+wide=4", 0)
    assert (p["restarts"], p["lambda_m"], p["wide"], p["student_temperature"]) == (1, 0.5, 4, 0.1)


def test_default_values_are_not_part_of_an_identity(committed: dict[str, Any]) -> None:
    for row in ("gcd", "simgcd", "full-paper"):
        before = resolve(parse(committed), "cub", row, 0)
        assert not {"tail", "loss_group", "info_nce_weight", "sup_con_weight"} & before.keys()
        assert resolve(parse(committed), "cub", f"{row}+sup_con_weight=1.0", 0) == before | {
            "row": f"{row}+sup_con_weight=1.0"
        }
        heavier = resolve(parse(committed), "cub", f"{row}+sup_con_weight=2.0", 0)
        assert heavier["sup_con_weight"] == 2.0
        full, plain = (completed(p) for p in (heavier, before))
        assert (full["info_nce_weight"], plain["sup_con_weight"]) == (1.0, 1.0)
        method = entries.load(before["method"])
        of = Batch({})
        assert method(full).weights(of)["sup_con"] == 2 * method(plain).weights(of)["sup_con"]


def test_rows_of_a_table(committed: dict[str, Any]) -> None:
    committed["rows_of"] = {"main_ssb": ["kmeans", "gcd+lr=0.05"], "ablation_cub": ["simgcd", "full-mended"]}
    params = parse(committed)
    assert list(dict.fromkeys(run.row for run in table_runs(params, "main_ssb"))) == ["kmeans", "gcd+lr=0.05"]
    assert tables.table_rows(params, "main", "cub") == ["kmeans", "gcd+lr=0.05"]
    assert tables.table_rows(params, "main", "cifar10") == params.rows.main
    assert tables.table_rows(params, "ablation", "cub") == ["simgcd", "full-mended"]
    assert set(tables.table_pairs(params, "statistics", "cub")) == {"gcd+lr=0.05", "full-mended"}
    assert "did you mean 'main_ssb'?" in error_of(lambda: edited(committed, "rows_of", {"main_sb": ["simgcd"]}))
    committed["rows_of"] = {"main_ssb": ["simgdc"]}
    assert "did you mean 'simgcd'?" in error_of(lambda: targets.check(parse(committed), ["demo"]))


def test_a_method_without_its_section_is_refused_when_requested(committed: dict[str, Any]) -> None:
    """Values in named settings and benchmarks can remain; they are still checked."""
    del committed["methods"]["gcd"]
    params = parse(committed)
    with pytest.raises(UserError, match=r"settings\.stated\.gcd\.info_nce_temperature: .* found 'x'$"):
        edited(copy.deepcopy(committed), "settings.stated.gcd.info_nce_temperature", "x")
    assert resolve(params, "cub", "full-paper", 0)["k"] == 10
    assert "params.yaml: methods.gcd is missing; add it with the keys projector" in error_of(
        lambda: resolve(params, "cub", "gcd", 0)
    )


def test_names_of_methods_may_hold_digits_and_underscores(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries.METHODS, "hyp_2", entries.METHODS["simgcd"])
    assert resolve(params, "fashion", "hyp_2+lr=0.05", 0)["method"] == "hyp_2"


def test_every_entry_has_a_class_that_reads_its_values(params: Params) -> None:
    for name, entry in entries.METHODS.items():
        made = entries.load(name)
        rows = [f"{name}-{variant}" for variant in entry.variants] or [name]
        for row in rows:
            method = made(resolve(params, OTHERWHERE.get(row, "fashion"), row, 0))
            assert set(entry.weights.values()) <= set(entry.reads)
            if entry.trains:
                assert list(method.terms()) == list(entry.terms)


def test_few_active_epochs_warn(committed: dict[str, Any]) -> None:
    committed["methods"]["full"] |= {"T_warm": 196}
    warnings = targets.check(parse(committed), [])
    assert "cub/full-paper: the context terms act in only 4 of 200 epochs" in warnings
    assert not [w for w in warnings if "simgcd" in w or "kmeans" in w or w.startswith("fashion")]


def test_committed_rows_are_possible_without_a_warning(params: Params) -> None:
    assert warned(params) == []


def test_values_that_the_paper_does_not_give_are_marked(params: Params) -> None:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    full = text[text.index("\n  full:\n    k:") : text.index("\nsettings:")]
    marked = {line.split(":")[0].strip() for line in full.splitlines() if "not given in the paper" in line}
    assert marked == set(NOT_IN_PAPER)
