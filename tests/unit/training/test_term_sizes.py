"""Shares of the terms in loss and gradient."""

from __future__ import annotations

import pytest
import torch

from ctxgcd.methods.full import Full
from ctxgcd.names import TERM_SIZES
from ctxgcd.training.term_sizes import shares, summary
from tests.helpers.methods import VARIANTS, batch, gradients, losses, network, parameters

torch.set_num_threads(1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_shares_are_those_of_each_term_alone(variant: str) -> None:
    method, net, of = Full(parameters(variant=variant)), network(), batch(32, 30)
    found = shares(net, losses(method, net, of), method.weights(of))
    assert list(found) == list(method.weights(of))
    for size in TERM_SIZES:
        assert sum(term[f"{size}_share"] for term in found.values()) == pytest.approx(1)
    for name, weight in method.weights(of).items():
        net.zero_grad()
        term = weight * losses(method, net, of)[name]
        assert found[name]["loss"] == pytest.approx(float(term.detach()), rel=1e-6)
        if variant == "released" and name == "L_n":
            assert not term.requires_grad
            assert found[name]["gradient"] == found[name]["tail_gradient"] == 0
            continue
        term.backward()
        of_all = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        of_tail = [p.grad.flatten() for key, p in net.named_parameters() if key.startswith("tail.")]
        assert found[name]["gradient"] == pytest.approx(float(of_all.norm()), rel=1e-5)
        assert found[name]["tail_gradient"] == pytest.approx(float(torch.cat(of_tail).norm()), rel=1e-5)  # type: ignore[arg-type]


def test_shares_do_not_change_gradients_and_graph() -> None:
    method, net, of = Full(parameters(lambda_n=0.0, lambda_c=0.0)), network(), batch(32, 30)
    expected = gradients(method, net, of)
    net.zero_grad()
    terms = losses(method, net, of)
    found = shares(net, terms, method.weights(of))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert found["L_c"]["gradient_share"] == found["L_n"]["loss_share"] == 0
    terms["loss"].backward()
    for name, parameter in net.named_parameters():
        if name in expected:
            assert torch.equal(parameter.grad, expected[name])  # type: ignore[arg-type]
    before = losses(Full(parameters()), net, batch(32))  # no context term acts yet
    assert "L_c" not in shares(net, before, Full(parameters()).weights(of))


def test_summary_has_the_last_epoch_and_the_first_epoch_of_late_terms() -> None:
    early, late = ({"loss_share": 0.75, "gradient_share": 0.5}, {"loss_share": 0.25, "gradient_share": 0.5})
    measured = [{"epoch": 0, "terms": {"ce": early}}, {"epoch": 8, "terms": {"ce": early, "L_n": late}}]
    expected = "share of loss / gradient in epoch 8: ce 75.0% / 50.0%, L_n 25.0% / 50.0% (from epoch 3)"
    assert summary({"shares": measured, "active_from": {"ce": 0, "L_n": 3}}) == expected
