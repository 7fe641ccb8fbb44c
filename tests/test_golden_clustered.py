"""Golden values of the compared methods that cluster the training images (tests/test_golden.py)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ctxgcd.catalogue.clustered import xcon_steps
from ctxgcd.catalogue.entries import load
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Batch, Rows, weighted
from tests.helpers.params import values
from tests.test_golden import agree, by_seed, compared, norms


@pytest.mark.parametrize("case", compared("xcon"), ids=by_seed)
def test_xcon(case: dict[str, Any]) -> None:
    experts, batch, whole, draw = (
        *(case[name] for name in ("experts", "expert_batch", "global_batch")),
        np.random.RandomState(case["seed"]),
    )
    sizes = [batch] * experts + [whole]
    rows = [torch.from_numpy(draw.randn(2 * size, case["dim"])).requires_grad_() for size in sizes]
    labels = [torch.from_numpy(draw.randint(0, case["classes"], size)) for size in sizes]
    labelled = [draw.rand(size) < 0.5 for size in sizes]
    for flags in labelled:
        flags[0] |= not flags.any()
    if case["first_expert_unlabelled"]:
        labelled[0][:] = False
    known = [own.where(torch.from_numpy(flags), -1) for own, flags in zip(labels, labelled, strict=True)]
    views = torch.stack([own.unflatten(0, (2, batch)) for own in rows[:-1]], dim=1).flatten(0, 2)
    ids = torch.arange(whole), torch.arange(experts * batch)
    groups = {
        "sampled": Rows(rows[-1], ids[0], known[-1]),
        "experts": Rows(views, ids[1], torch.cat(known[:-1])),
    }
    method = load("xcon")(values("xcon", experts=experts))
    plain: Any = SimpleNamespace(tail=nn.Identity(), projector=nn.Identity(), experts=[nn.Identity()] * experts)
    terms = method.losses(plain, Batch(groups)).terms
    weights = method.weights(Batch(groups))
    loss = weighted(terms, weights)
    coarse = weighted({name: terms[name] for name in ("info_nce", "sup_con")}, weights)
    found = {"coarse": coarse, "fine": (loss - coarse) / 0.1, "loss": loss}
    found["grad_norm_first_expert"], found["grad_norm_global"] = norms(loss, rows[0], rows[-1])
    agree(found, case)
    for name in ("info_nce", "sup_con"):
        assert terms[name].item() == pytest.approx(case[name][-1], rel=1e-10)
        assert terms[f"expert_{name}"].item() == pytest.approx(np.mean(case[name][:-1]), rel=1e-10)


@pytest.mark.parametrize("schedules", compared("schedules"), ids=[""])
def test_schedules(schedules: dict[str, Any]) -> None:
    rate = partial(cosine_lr, epochs=200, base_lr=0.1, floor=1e-3)
    assert {e: rate(int(e)) for e in schedules["xcon_lr"]} == pytest.approx(schedules["xcon_lr"], rel=1e-10)
    for case in schedules["xcon_steps"]:
        p = values("xcon", expert_batch=case["expert_batch"], batch_size=case["global_batch"])
        known = {"largest_subset": max(case["sizes"])}
        assert xcon_steps(p, case["images"], known) == case["steps_an_epoch"]
