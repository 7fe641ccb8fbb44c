"""What all compared methods share: resuming, groups, values that count, decay, modes, and steps without waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxgcd.catalogue.entries import METHODS, load
from ctxgcd.config import Images, Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.tables import table_runs
from ctxgcd.plan.work import Work, work_of
from ctxgcd.training import loop
from ctxgcd.training.row import Row
from tests.helpers.compared import COMPARED, STAGE_EPOCHS, batch_of, marked, method_and_network, small, tail_of
from tests.helpers.hooks import begun, resumed_run, whole_run
from tests.helpers.training import DIM, Recorder, Training, equal
from tests.helpers.waits import Counter

torch.set_num_threads(1)

EVERY = pytest.mark.parametrize("row", COMPARED)
TRAINED = pytest.mark.parametrize("row", marked(COMPARED))
Whole = Callable[[str], tuple[Training, Recorder]]
OTHER_STEPS = {"xcon", "dccl"}  # whose steps have images beside those of the sampler


def trained(folder: Path, row: str, **changes: Any) -> Training:
    return whole_run(folder, load(row), tail_of=tail_of, **small(row, **changes))[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the short run of a row, which is trained once."""
    return cache(lambda row: whole_run(tmp_path_factory.mktemp(row), load(row), tail_of=tail_of, **small(row)))


@TRAINED
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, whole: Whole, row: str, done: int) -> None:
    expected, recorder = whole(row)
    before = STAGE_EPOCHS.get(row, 0)
    of_epoch = len(recorder.calls) // (before + 3)
    stop_at = (before + done) * of_epoch + 3
    again, rest = resumed_run(tmp_path, load(row), stop_at, tail_of=tail_of, **small(row))
    assert equal(again, expected)
    assert len(rest.calls) == (3 - done) * of_epoch


@TRAINED
def test_the_health_is_in_the_history(whole: Whole, row: str) -> None:
    made, _ = whole(row)
    assert METHODS[row].health.keys() == set(made.row.method.logged)
    assert made.row.method.terms().keys() == METHODS[row].terms.keys()
    for line in made.row.history:
        assert line.keys() == set(made.row.method.columns())
    assert made.row.method.idle(made.row.history) == ""


CHANGES: dict[str, dict[str, Any]] = {  # a value of each method's section that changes its training
    "rsplus": {
        **{"lr": 0.01, "lr_factor": 0.5, "first_drop": 2, "second_drop": 9, "weight_decay": 0.1, "top_k": 1},
        **{"ranked": "absolute", "labelled_pairs": "truth", "ce_over": "old", "ce_weight": 0.5},
        **{"consistency_weight": 5.0, "ramp_epochs": 2},
    },
    "unoplus": {
        **{"lr": 0.01, "lr_ends": 0.01, "warmup_epochs": 2, "weight_decay": 0.1, "projector_width": 8},
        **{"projection_dim": 5, "heads": 3, "over_factor": 2, "temperature": 0.2, "epsilon": 0.1, "iterations": 2},
        **{"targets_over": "new", "scored_prototypes": "released"},
    },
    "orca": {"scale": 5.0, "margin_limit": 0.1, "pair_weight": 0.5, "entropy_weight": 0.5},
    "xcon": {
        **{"projector_width": 8, "projection_dim": 5, "head_dim": 7, "supervised_weight": 0.5, "info_nce_weight": 0.5},
        **{"sup_con_weight": 0.5, "info_nce_temperature": 0.5, "sup_con_temperature": 0.1, "batch_size": 6},
        **{"experts": 3, "expert_batch": 3, "expert_weight": 0.2, "partition_restarts": 3, "partition_seed": 2},
        **{"steps": "global"},
    },
    "dccl": {
        **{"projector_width": 8, "projection_dim": 5, "head_dim": 7, "supervised_weight": 0.5, "info_nce_weight": 0.5},
        **{"sup_con_weight": 0.5, "info_nce_temperature": 0.5, "sup_con_temperature": 0.1, "warmup_epochs": 1},
        **{"k": 5, "min_similarity": 0.95, "edges": "released", "min_images": 14, "concepts_per_batch": 1},
        **{"images_per_concept": 3, "concept_temperature": 0.2, "memory_momentum": 0.9, "concept_weight_start": 0.2},
        **{"concept_weight": 0.8, "ramp_epochs": 2},
    },
    "promptcal": {
        **{"projector_width": 8, "projection_dim": 5, "head_dim": 9, "supervised_weight": 0.5, "info_nce_weight": 2.0},
        **{"sup_con_weight": 2.0, "info_nce_temperature": 0.5, "sup_con_temperature": 0.1, "stage_epochs": 2},
        **{"epochs": 2, "prompts": 2, "used_prompts": 1, "prompt_weight": 0.5, "ema": 0.5, "memory_size": 24},
        **{"neighbours": 2, "quantile": 0.5, "negatives": 6, "affinity_temperature": 0.2, "affinity_share": 0.3},
        **{"ramp_epochs": 2, "positive": "released"},
    },
}


# One epoch of few steps, in which most values count; the others are tried in the usual run.
SHORT = {"epochs": 1, "batch_size": 20}


@TRAINED
def test_each_value_counts(tmp_path: Path, whole: Whole, row: str) -> None:
    # Read only by predictions; the seed of a graph, whose communities are clear here (tests/unit/clustering).
    others = {"predicting_head", "semi_kmeans_restarts", "semi_kmeans_iterations", "graph_seed"}
    assert CHANGES[row].keys() == set(METHODS[row].values.model_fields) - others
    base = trained(tmp_path, row, **SHORT)
    hidden = {n: v for n, v in CHANGES[row].items() if equal(trained(tmp_path / n, row, **SHORT | {n: v}), base)}
    for name, value in hidden.items():
        assert not equal(trained(tmp_path / "usual" / name, row, **{name: value}), whole(row)[0]), name


@EVERY
def test_every_parameter_is_trained_and_decayed(row: str) -> None:
    method, net = method_and_network(row, weight_decay=0.1)
    [optimiser] = method.optimisers(net)
    decayed = [p for group in optimiser.param_groups if group["weight_decay"] == 0.1 for p in group["params"]]
    trained = [p for p in net.parameters() if p.requires_grad]
    assert len(decayed) == len(trained)
    found = method.losses(net, batch_of([0, 1, 0, 1, -1, -1, -1, -1])).terms
    sum(found.values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)


@EVERY
@pytest.mark.parametrize("labels", [[-1] * 8, [0, 1] * 4, [0] + [-1] * 7, [0] * 7 + [-1]])
@pytest.mark.parametrize("ids", [range(8), [0, 0, 2, 2, 4, 4, 4, 4], [0] * 8], ids=["distinct", "twice", "one"])
def test_odd_batches_are_finite(row: str, labels: list[int], ids: Any) -> None:
    method, net = method_and_network(row)
    labels = [labels[i] for i in ids]
    found = method.losses(net, batch_of(labels, ids=ids))
    loss = sum(found.terms.values())
    loss.backward()
    assert loss.isfinite()
    assert all(value.isfinite() for value in found.logged.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    if max(labels) < 0:
        assert all(found.terms[name] == 0 for name in ("cls", "sup_con", "expert_sup_con") if name in found.terms)


@EVERY
def test_groups_of_a_batch_are_averaged(tmp_path: Path, row: str) -> None:
    method, net = method_and_network(row, batch_size=8, loss_group=4)
    of = batch_of([0, 1, -1, -1, -1, -1, -1, -1])
    terms = [method.losses(net, part).terms for part in of.parts(2)]
    state = Row(method, net, tmp_path / "last.pt", "made-up", {})
    state.epoch, state.sums, state.finite = 0, {}, {}
    state.learn(of)
    for name in method.terms():
        assert float(state.sums[name]) == pytest.approx(sum(float(part[name].detach()) for part in terms) / 2)
    whole = method_and_network(row, batch_size=8)
    assert {n: float(v.detach()) for n, v in whole[0].losses(whole[1], of).terms.items()} != {
        n: float(v) for n, v in state.sums.items() if n in terms[0]
    }


@TRAINED
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_step_never_waits_for_the_device(tmp_path: Path, row: str, precision: str) -> None:
    waits = []
    for batch_size in (4, 12):
        made, _ = begun(tmp_path, load(row), tail_of=tail_of, **small(row, batch_size=batch_size, precision=precision))
        made.row.method.prepare(made.row.network, made.inputs.look(made.row.network, 0))
        with Counter() as counter:
            loop.train_epoch(made.row, made.inputs, 1)
        waits.append(counter.waits)
    assert waits[0] == waits[1] > 0


@TRAINED
def test_bf16_trains_nearly_as_float32(tmp_path: Path, row: str) -> None:
    first = [trained(tmp_path / of, row, precision=of, epochs=1).row.history[0] for of in ("float32", "bf16")]
    assert first[1]["loss"] == pytest.approx(first[0]["loss"], rel=0.05)


def test_the_main_tables_list_and_price_the_rows(params: Params) -> None:
    for table in ("main_ssb", "main_generic", "main_challenging"):
        assert set(COMPARED) <= {run.row for run in table_runs(params, table)}
    images = Images(train=2000, test=500)
    for benchmark, passes in (("fashion", {"orca": 13}), ("cub", {})):
        plain = work_of(images, 10, resolve(params, benchmark, "simgcd", 0))
        for row in COMPARED.keys() - OTHER_STEPS - {"promptcal"}:  # in its own tests
            found = work_of(images, 10, resolve(params, benchmark, row, 0))
            assert found == replace(plain, contextual=2000 * passes.get(row, 0)), (benchmark, row)
        concepts = 2 * 128 * resolve(params, benchmark, "dccl", 0)["epochs"] * (2000 // 128)  # as many as sampled
        expected = Work(contextual=plain.baseline + concepts + 2000 * passes.get("orca", 0), test=plain.test)
        assert work_of(images, 10, resolve(params, benchmark, "dccl", 0)) == expected


def test_the_planned_size_of_the_heads_is_theirs() -> None:
    method, net = method_and_network("xcon", projector_width=9, projection_dim=7, head_dim=5, experts=3)
    heads = sum(p.numel() for name, p in net.named_parameters() if not name.startswith("tail."))
    assert METHODS["xcon"].head_values(method.p, DIM) == heads


def test_the_planned_size_of_the_heads_is_that_of_their_mlps() -> None:
    method, net = method_and_network("unoplus", projector_width=9, projection_dim=7, heads=3)
    mlps = sum(p.numel() for of in (net.new, net.over) for n, p in of.named_parameters() if n != "prototypes")
    assert METHODS["unoplus"].head_values(method.p, DIM) == mlps
