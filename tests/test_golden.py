"""Golden values, computed independently from the released code and the equations, and 20 steps of training."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.evaluation.accuracy import v2, v2b
from ctxgcd.losses import cluster, neighbourhood
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.pairs import mutual_same_label, released_pairs
from ctxgcd.losses.partners import negative_entropy, pair_similarity, partners
from ctxgcd.losses.ranking import consistency, pair_bce, same_top, with_truth
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.losses.swapped import sinkhorn, swapped_prediction, targets
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.rsplus import ramp_up, step_lr
from ctxgcd.methods.schedules import cosine_lr, teacher_temperature
from ctxgcd.methods.unoplus import warm_up_cosine
from ctxgcd.models.heads import CosineClassifier, Projector
from ctxgcd.models.multi_head import MultiHead

TESTS = Path(__file__).resolve().parent
SHARED, CARRIED = TESTS.parents[1] / "shared/golden", TESTS / "golden"  # all cases, and some of them
GOLDEN = Path(os.environ.get("CTXGCD_GOLDEN") or (SHARED if SHARED.is_dir() else CARRIED))

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"no golden values in {GOLDEN}: set CTXGCD_GOLDEN to their folder"
)


def load(name: str) -> list[dict[str, Any]]:
    """Return the cases of a golden file; none if it is missing (the tests are then skipped)."""
    path = GOLDEN / name
    content = json.loads(path.read_text()) if path.is_file() else []
    return content["losses"] if isinstance(content, dict) else content


def compared(section: str) -> list[dict[str, Any]]:
    """Return the cases of a section of compared.json; none if it is missing."""
    path = GOLDEN / "compared.json"
    cases = json.loads(path.read_text()).get(section, []) if path.is_file() else []
    return [cases] if isinstance(cases, dict) else cases


def by_seed(case: dict[str, Any]) -> str:
    return f"seed{case['seed']}"


def at_least_two(labelled: np.ndarray) -> Tensor:
    if labelled.sum() < 2:
        labelled[:2] = True
    return torch.from_numpy(labelled)


def cosines(features: Tensor, prototypes: Tensor) -> Tensor:
    return normalize(features, dim=1) @ normalize(prototypes, dim=1).T


@pytest.mark.parametrize("case", load("losses.json"), ids=by_seed)
def test_losses(case: dict[str, Any]) -> None:
    batch, classes, dim, k = case["batch"], case["classes"], case["dim"], case["topk"]
    draw = np.random.RandomState(case["seed"])
    raw = torch.from_numpy(draw.randn(2 * batch, dim))
    logits = cosines(torch.from_numpy(draw.randn(2 * batch, 32)), torch.from_numpy(draw.randn(classes, 32)))
    labels = torch.from_numpy(draw.randint(0, max(2, classes // 2), size=batch))
    labelled = at_least_two(draw.rand(batch) < 0.5)
    z, pseudo = normalize(raw, dim=1), logits.argmax(dim=1)
    teacher = teacher_temperature(case["epoch"], case["warmup_teacher_temp_epochs"], 0.07, 0.04, "linear")
    small = (raw * 0.02).float()
    exact = {
        "info_nce_t1.0": info_nce(raw, 1.0),
        "info_nce_t0.07": info_nce(raw, 0.07),
        "sup_con_t0.07": sup_con(raw, labels, labelled, 0.07),
        "distill": distill(logits, teacher, 0.1),
        "log_k_minus_entropy": entropy_gap(logits, 0.1),
        "cls_ce": cross_entropy(logits, labels, labelled, 0.1),
        "neighbourhood_paper_delta1.0": neighbourhood.paper(z, mutual_same_label(z, pseudo, k), 1.0),
        "cluster_paper_tau0.5": cluster.paper(z[:batch], z[batch:], pseudo[:batch], pseudo[batch:], classes, 0.5),
    }
    single = {
        "neighbourhood_released": neighbourhood.released(small, released_pairs(small, pseudo, k), 1.0),
        "cluster_released_t0.5": cluster.released(
            raw[:batch].float(), raw[batch:].float(), pseudo[:batch], classes, 0.5
        ),
    }
    assert {name: value.item() for name, value in exact.items()} == pytest.approx(
        {name: case[name] for name in exact}, rel=0, abs=1e-12
    )
    assert {name: value.item() for name, value in single.items()} == pytest.approx(
        {name: case[name] for name in single}, rel=1e-5, abs=0
    )
    both = set(pseudo[:batch].tolist()) & set(pseudo[batch:].tolist())
    assert len(both) == case["cluster_paper_classes"]


@pytest.mark.parametrize("case", load("accuracy.json"), ids=by_seed)
def test_accuracy(case: dict[str, Any]) -> None:
    true = np.array(case["y_true"])
    for name, metric in (("v2", v2), ("v2b", v2b)):
        score = metric(case["y_pred"], true, true < case["old"])
        assert [score.all, score.old, score.new] == pytest.approx([100 * value for value in case[name]], abs=1e-10)


class Network(nn.Module):
    """The tail and the two heads of the trace, with its initial values."""

    def __init__(self, draw: np.random.RandomState) -> None:
        super().__init__()
        unused = torch.Generator()
        self.tail = nn.Linear(20, 24)
        self.projector = Projector(24, 32, 16, generator=unused)
        self.classifier = CosineClassifier(24, 6, generator=unused)
        self.double()
        layers = [self.tail, *(layer for layer in self.projector if isinstance(layer, nn.Linear))]
        with torch.no_grad():
            for layer, scale in zip(layers, (0.2, 0.1, 0.1, 0.1), strict=True):
                layer.weight.copy_(torch.from_numpy(draw.randn(*layer.weight.shape) * scale))
                layer.bias.zero_()
            direction = draw.uniform(-1, 1, (6, 24)) / math.sqrt(24)
            self.classifier.direction.copy_(torch.from_numpy(direction))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.tail(x)
        return self.projector(features), self.classifier(features)


@pytest.mark.parametrize("case", load("trace.json"), ids=by_seed)
def test_training_trace(case: dict[str, Any]) -> None:
    draw = np.random.RandomState(case["seed"])
    network, batch = Network(draw), case["batch"]
    optimiser = torch.optim.SGD(parameter_groups(network.named_parameters(), 5e-5), lr=0.1, momentum=0.9)
    rates, losses = [], []
    for epoch in range(case["epochs"]):
        rates.append(cosine_lr(epoch, case["epochs"], 0.1, 1e-3))
        teacher = teacher_temperature(epoch, case["warmup_teacher_temp_epochs"], 0.07, 0.04)
        for group in optimiser.param_groups:
            group["lr"] = rates[-1]
        for _ in range(case["steps_per_epoch"]):
            x = torch.from_numpy(draw.randn(2 * batch, 20))
            labels = torch.from_numpy(draw.randint(0, 3, batch))
            labelled = at_least_two(draw.rand(batch) < 0.5)
            raw, logits = network(x)
            representation = 0.65 * info_nce(raw, 1.0) + 0.35 * sup_con(raw, labels, labelled, 0.07)
            unsupervised = distill(logits, teacher, 0.1) + case["eps"] * entropy_gap(logits, 0.1)
            loss = representation + 0.65 * unsupervised + 0.35 * cross_entropy(logits, labels, labelled, 0.1)
            if epoch > case["cluster_released_after_epoch"]:
                pseudo = logits[:batch].argmax(dim=1)
                loss = loss + 0.1 * cluster.released(raw[:batch], raw[batch:], pseudo, 6, 0.5)
            losses.append(loss.item())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    mixed = case["cluster_released_after_epoch"] < case["epochs"]
    tolerance = 1e-5 if mixed else 1e-9
    assert rates == pytest.approx(case["lr_per_epoch"], rel=1e-9)
    assert losses == pytest.approx(case["loss_per_step"], rel=tolerance, abs=0)
    parameters = {
        "tail.weight": network.tail.weight,
        "tail.bias": network.tail.bias,
        "classifier.v": network.classifier.direction,
    }
    # The trace counts the projector's linear layers only: 0, 1, 2.
    for index, layer in enumerate(layer for layer in network.projector if isinstance(layer, nn.Linear)):
        parameters |= {f"projector.{index}.weight": layer.weight, f"projector.{index}.bias": layer.bias}
    for name, expected in case["final"].items():
        value = parameters[name].detach()
        found = [value.sum().item(), value.norm().item(), *value.flatten()[:3].tolist()]
        assert found == pytest.approx([expected["sum"], expected["norm"], *expected["first"]], rel=tolerance, abs=0), (
            name
        )


# -- compared methods --------------------------------------------------------------------------------------


def norms(loss: Tensor, *inputs: Tensor) -> list[float]:
    """Return the norm of the gradient with respect to each input."""
    return [float(grad.norm()) for grad in torch.autograd.grad(loss, inputs, retain_graph=True)]


def agree(found: dict[str, Any], case: dict[str, Any]) -> None:
    """Compare floats to a relative error of 1e-10, and counts exactly."""
    numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in found.items()}
    assert numbers == pytest.approx({name: case[name] for name in found}, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("case", compared("rs"), ids=by_seed)
def test_rs(case: dict[str, Any]) -> None:
    batch, old, k, draw = case["batch"], case["old"], case["topk"], np.random.RandomState(case["seed"])
    classes = old + case["new"]
    group = draw.randint(0, case["groups"], batch)
    drawn = 2 * draw.randn(case["groups"], case["dim"])[group] + 0.15 * draw.randn(batch, case["dim"])
    features, first = torch.from_numpy(drawn), torch.from_numpy(2 * draw.randn(batch, classes))
    second = first + 0.5 * torch.from_numpy(draw.randn(batch, classes))
    view_1, view_2 = first.requires_grad_(), second.requires_grad_()
    labels = torch.from_numpy(draw.randint(0, old, batch))
    labelled = at_least_two(draw.rand(batch) < 0.5)
    labels = labels.where(labelled, torch.tensor(-1))
    ramped = ramp_up(case["epoch"], case["rampup_coefficient"], case["rampup_length"])
    unlabelled, of_old, of_new = ~labelled, slice(None, old), slice(old, None)
    same = same_top(features[unlabelled], k)
    bce = pair_bce(view_1[unlabelled, of_new], view_2[unlabelled, of_new], same)
    mse = [consistency(view_1[:, of], view_2[:, of]) / 2 for of in (of_old, of_new)]
    ce = labelled_cross_entropy(view_1[:, of_old], labels)
    found = {"positive_pairs_unlabelled": int(same.sum()), "bce": bce, "ce": ce, "consistency": sum(mse), "w": ramped}
    found["loss"] = ce + bce + ramped * sum(mse)
    found["grad_norm_view1"], found["grad_norm_view2"] = norms(found["loss"], view_1, view_2)
    [found["grad_norm_bce_view1"]] = norms(bce, view_1)
    agree(found, case["two_heads"])
    raw, absolute = same_top(features, k), same_top(features, k, absolute=True)
    truth = with_truth(raw, labels)
    counts = {"raw": raw, "absolute": absolute, "raw_with_truth": truth}
    found = {f"positive_pairs_{name}": int(pairs.sum()) for name, pairs in counts.items()}
    found |= {
        f"bce_{name}": pair_bce(view_1, view_2, pairs)
        for name, pairs in (("released", raw), ("truth", truth), ("absolute", absolute))
    }
    found |= {"ce": labelled_cross_entropy(view_1, labels), "ce_old_logits_only": ce}
    found["consistency"] = consistency(view_1, view_2)
    for name, prefix in (("released", "grad_norm"), ("truth", "grad_norm_truth")):
        loss = found["ce"] + found[f"bce_{name}"] + ramped * found["consistency"]
        found |= {f"loss_{name}": loss}
        found[f"{prefix}_view1"], found[f"{prefix}_view2"] = norms(loss, view_1, view_2)
    agree(found, case["rs_plus"])


@pytest.mark.parametrize("case", compared("uno"), ids=by_seed)
def test_uno(case: dict[str, Any]) -> None:
    batch, dim, draw = case["batch"], case["dim"], np.random.RandomState(case["seed"])
    base = draw.randn(batch, dim)
    features = torch.from_numpy(np.stack([base + 0.3 * draw.randn(batch, dim) for _ in range(2)]))
    products = [normalize(features, dim=-1) @ normalize(torch.from_numpy(draw.randn(case["old"], dim)), dim=1).T]
    for prototypes in (case["new"], case["new"] * case["overcluster_factor"]):
        of_heads = []
        for _ in range(case["heads"]):
            mixed = features @ torch.from_numpy(draw.randn(dim, dim))
            mixed = normalize(mixed + case["sharp"] * torch.from_numpy(draw.randn(dim)), dim=-1)
            of_heads.append(mixed @ normalize(torch.from_numpy(draw.randn(prototypes, dim)), dim=1).T)
        products.append(torch.stack(of_heads, dim=1))
    old, new, over = (of.requires_grad_() for of in products)
    labels = torch.from_numpy(draw.randint(0, case["old"], batch))
    labels = labels.where(at_least_two(draw.rand(batch) < 0.5), torch.tensor(-1))
    for kind, first in (("new_only", case["old"]), ("all_classes", 0)):
        by_head = []
        for heads in (new, over):
            cosines = torch.cat([old[:, None].expand(-1, case["heads"], -1, -1), heads], dim=-1)
            target = targets(cosines, labels, case["epsilon"], case["iterations"], first)
            by_head.append(swapped_prediction(cosines, target, case["temperature"]))
        cluster_loss, over_loss = (losses.mean() for losses in by_head)
        loss = (cluster_loss + over_loss) / 2
        agree({"loss_cluster": cluster_loss, "loss_overcluster": over_loss, "loss": loss}, case[kind])
        assert by_head[0].tolist() == pytest.approx(case[kind]["loss_per_head"], rel=1e-10)
        names = ("grad_norm_old", "grad_norm_new", "grad_norm_over")
        agree(dict(zip(names, norms(loss, old, new, over), strict=True)), case[kind])
    expected = case["all_classes"]["sinkhorn"]
    rows = sinkhorn(torch.cat([old[0], new[0, 0]], dim=1), labels < 0, case["epsilon"], case["iterations"])[labels < 0]
    columns = rows.sum(dim=0)
    agree({"rows": len(rows), "columns": rows.shape[1], "sum_of_squares": rows.square().sum()}, expected)
    agree({"largest_column_sum": columns.max(), "smallest_column_sum": columns.min()}, expected)
    agree({"old_mass": columns[: case["old"]].sum()}, expected)
    assert rows[0, :4].tolist() == pytest.approx(expected["first_row"], rel=1e-10)


@pytest.mark.parametrize("case", compared("uno_head"), ids=by_seed)
def test_uno_head(case: dict[str, Any]) -> None:
    draw, dim, width, out = np.random.RandomState(case["seed"]), case["dim"], case["hidden"], case["out"]
    net = MultiHead(dim, width, out, case["prototypes"], case["heads"], generator=torch.Generator()).double()
    with torch.no_grad():
        for of in (net.first_bias, net.second_bias):
            of.zero_()
        for head in range(case["heads"]):
            units = slice(head * width, (head + 1) * width)
            net.first[units] = torch.from_numpy(draw.randn(width, dim) / math.sqrt(dim))
            net.second[head] = torch.from_numpy(draw.randn(out, width) / math.sqrt(width)).T
            net.norm.weight[units] = torch.from_numpy(1 + 0.1 * draw.randn(width))
            net.norm.bias[units] = torch.from_numpy(0.1 * draw.randn(width))
            net.prototypes[head] = torch.from_numpy(draw.randn(case["prototypes"], out))
        net.normalise()
    x = torch.from_numpy(draw.randn(case["batch"], dim)).requires_grad_()
    rows = net.train()(x)
    squares = rows.square().sum()
    agree({"train_sum_of_squares": squares, "grad_norm_input": norms(squares, x)[0]}, case)
    assert rows[0, 0].tolist() == pytest.approx(case["train_first_row_head0"][: case["prototypes"]], rel=1e-10)
    rows = net.eval()(x)
    agree({"eval_after_one_step_sum_of_squares": rows.square().sum()}, case)
    for name, found in (
        ("eval_first_row_head0", rows[0, 0]),
        ("running_mean_head0", net.norm.running_mean),
        ("running_var_head0", net.norm.running_var),
    ):
        assert found[: len(case[name])].tolist() == pytest.approx(case[name], rel=1e-10), name


@pytest.mark.parametrize("case", compared("orca"), ids=by_seed)
def test_orca(case: dict[str, Any]) -> None:
    batch, labelled, dim, draw = case["batch"], case["labelled"], case["dim"], np.random.RandomState(case["seed"])
    base = draw.randn(batch, dim)
    features = [torch.from_numpy(base + 0.2 * draw.randn(batch, dim)) for _ in range(2)]
    prototypes = torch.from_numpy(draw.randn(case["classes"], dim))
    view_1, view_2 = ((10 * cosines(of, prototypes)).requires_grad_() for of in features)
    labels = torch.full((batch,), -1)
    labels[:labelled] = torch.from_numpy(draw.randint(0, case["old"], labelled))
    expected = torch.tensor(case["positives"])
    drawn = torch.zeros(batch, batch).scatter(1, expected[:, None], 1.0)  # those of labelled images are given
    partner = partners(features[0], labels, drawn)
    assert partner.tolist() == case["positives"]
    found = {
        "ce_margin": labelled_cross_entropy(view_1, labels, 10 * min(case["uncertainty"], 0.5)),
        "pairwise": pair_similarity(view_1, view_2, partner),
        "entropy": -negative_entropy(view_1),
    }
    found["loss"] = found["ce_margin"] + found["pairwise"] - found["entropy"]
    found["grad_norm_view1"], found["grad_norm_view2"] = norms(found["loss"], view_1, view_2)
    unlabelled = view_1[labelled:].softmax(dim=1).amax(dim=1)
    agree(found | {"mean_uncertainty_of_unlabelled_view1": 1 - unlabelled.mean()}, case)


@pytest.mark.parametrize("schedules", compared("schedules"), ids=[""])
def test_schedules(schedules: dict[str, Any]) -> None:
    found = {
        "rs_plus_lr": partial(step_lr, lr=0.1, factor=0.1, drops=(85, 170)),
        "uno_lr": partial(warm_up_cosine, epochs=200, lr=0.4, ends=0.001, warmup_epochs=10),
    }
    expected = {name: schedules[name] for name in found}
    for name, ramped in schedules["rs_w"].items():
        weight, epochs = map(float, name.split("/"))
        found[name], expected[name] = partial(ramp_up, weight=weight, epochs=int(epochs)), ramped
    for name, by_epoch in expected.items():
        assert {e: found[name](int(e)) for e in by_epoch} == pytest.approx(by_epoch, rel=1e-10), name
