"""A step whose losses are computed in groups of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ctxgcd.catalogue.entries import load
from ctxgcd.errors import UserError
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Rows
from ctxgcd.training.processes import ProcessEnded
from ctxgcd.training.row import Row
from tests.helpers.methods import VARIANTS, batch, losses, network, parameters
from tests.helpers.params import values

torch.set_num_threads(1)

GROUP, GROUPS, AROUND = 16, 8, 15  # images, groups, neighbour images of a group: three queries of five
METHODS = [("gcd", None), ("simgcd", None), *(("full", variant) for variant in VARIANTS)]


def double(of: Batch) -> Batch:
    groups = {
        name: Rows(rows.views.double(), rows.ids, rows.labels, {"nearest": rows.ids[:, None] + torch.arange(1, 6)})
        for name, rows in of.groups.items()
    }
    return Batch(groups)


def one_group(of: Batch, g: int) -> Batch:
    """Return images g * n to g * n + n - 1 of each group of images, written without Batch.parts."""
    groups = {}
    for name, rows in of.groups.items():
        n = {"sampled": GROUP, "neighbours": AROUND}[name]
        own, images = range(g * n, g * n + n), len(rows.ids)
        views = [rows.views[i] for i in own] + [rows.views[images + i] for i in own]
        ids, labels = (torch.stack([values[i] for i in own]) for values in (rows.ids, rows.labels))
        groups[name] = Rows(torch.stack(views), ids, labels, {"nearest": rows.given["nearest"][own]})
    return Batch(groups)


def gradients(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in net.named_parameters() if value.grad is not None}


def made(name: str, **changes: Any) -> tuple[Method, Any]:
    """Return a method and a network in float64."""
    usual = {"batch_size": GROUP * GROUPS, "neighbour_images": AROUND, "projector_width": 16, "head_dim": 12}
    p = values("gcd") | usual | changes if name == "gcd" else parameters(**usual | changes)
    method = load(name)(p)
    net = network() if name != "gcd" else method.network(network().tail, 8, 3)
    return method, net.double()


@pytest.mark.parametrize("reciprocal", ["batch", "dataset"])
@pytest.mark.parametrize(("name", "variant"), METHODS)
def test_a_step_in_groups_is_the_mean_of_separate_calls(
    tmp_path: Path, name: str, variant: str | None, reciprocal: str
) -> None:
    """Terms and gradients in float64; the second group has no labelled image."""
    method, net = made(name, loss_group=GROUP, variant=variant or "paper", reciprocal=reciprocal)
    of = double(batch(GROUP * GROUPS, AROUND * GROUPS if variant else None))
    of.sampled.labels[GROUP : 2 * GROUP] = -1
    terms, expected = [], []
    for g in range(GROUPS):
        net.zero_grad()
        found = losses(method, net, one_group(of, g))
        found["loss"].backward()
        terms.append({term: float(value.detach()) for term, value in found.items()})
        expected.append(gradients(net))
    assert terms[1]["sup_con"] == 0
    assert terms[0]["sup_con"] > 0
    row = Row(method, net, tmp_path / "last.pt", "made-up", {})
    row.epoch, row.sums, row.finite = 0, {}, {}
    row.learn(of)
    for term, value in row.sums.items():
        mean = sum(one[term] for one in terms) / GROUPS
        in_float32 = variant == "released" and term in ("L_n", "loss")  # the released L_n is a float32 number
        assert float(value) == pytest.approx(mean, abs=1e-6 if in_float32 else 1e-12), term
    assert {"loss", *method.terms()} - {"L_n", "L_c"} <= row.sums.keys()
    got = gradients(net)
    assert got.keys() == expected[0].keys()
    for key, value in got.items():
        mean = sum(one[key] for one in expected) / GROUPS
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)
        assert value.abs().max() > 1e-6


def test_the_groups_change_the_losses_of_one_batch() -> None:
    (whole, net), (grouped, _) = made("simgcd"), made("simgcd", loss_group=GROUP)
    of = double(batch(GROUP * GROUPS))
    (only,) = of.parts(whole.loss_groups)
    assert only is of
    parts = [losses(grouped, net, part) for part in of.parts(grouped.loss_groups)]
    together = losses(whole, net, of)
    for term in ("info_nce", "sup_con", "entropy"):
        mean = sum(part[term].detach() for part in parts) / GROUPS
        assert (mean - together[term].detach()).abs() > 1e-3, term
    torch.testing.assert_close(sum(part["distill"] for part in parts) / GROUPS, together["distill"])


def test_each_group_has_its_own_random_numbers() -> None:
    of = double(batch(GROUP * GROUPS))
    draws = {float(torch.rand(1, generator=part.stream("noise"))) for part in [*of.parts(GROUPS), of]}
    assert len(draws) == GROUPS + 1
    assert {float(torch.rand(1, generator=part.stream("noise"))) for part in [*of.parts(GROUPS), of]} == draws


def test_collapse_is_judged_by_the_images_of_a_loss() -> None:
    (whole, _), (grouped, _) = made("simgcd"), made("simgcd", loss_group=GROUP)
    at_chance = {"info_nce": float(torch.tensor(2.0 * GROUP - 1).log())}
    assert grouped.collapsed(at_chance)
    assert not whole.collapsed(at_chance)


def test_an_error_ends_its_row_and_the_end_of_another_process_ends_all() -> None:
    method, net = made("simgcd")
    row = Row(method, net, Path(), "", {})
    with row.ending():
        raise UserError("diverged")
    assert str(row.error) == "diverged"
    with pytest.raises(ProcessEnded), row.ending():
        raise ProcessEnded("ended")
