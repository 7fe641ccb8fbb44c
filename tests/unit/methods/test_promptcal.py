"""PromptCAL: its stages, terms, teacher and memories, refusals, and its cost in a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import METHODS, load
from ctxgcd.config import Images, Params
from ctxgcd.losses.affinity import affine_pairs, affinity, drawn_negatives, with_labels
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.promptcal import FirstStage, PromptCAL
from ctxgcd.methods.step import Batch, Look
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.plan.plan import write_plan
from ctxgcd.plan.rates import BENCHED_MEMORY, Measured
from ctxgcd.plan.work import work_of
from ctxgcd.training import checkpoint
from tests.helpers.compared import batch_of, method_and_network, small, tail_of
from tests.helpers.hooks import STEPS, resumed_run, whole_run
from tests.helpers.methods import look_of
from tests.helpers.refusals import error_of
from tests.helpers.training import DIM, equal, made_up

torch.set_num_threads(1)

LABELS = [0, 1, 0, -1, -1, 1, 0, -1]
AHEAD = {"epoch": 1, "step": 2, "steps": 3}  # five steps have filled all 40 rows of the memories


def filled(**changes: Any) -> tuple[Any, Any]:
    """Return the method and its network with full memories, and a teacher unlike the student."""
    method, network = method_and_network("promptcal", **changes)
    method.prepare(network, look_of(0))
    stream = torch.Generator().manual_seed(3)
    for ring in (network.memory, network.prompt_memory):
        ring.copy_(normalize(torch.randn(ring.shape, generator=stream), dim=1))
    network.labels.copy_(torch.randint(-1, 2, network.labels.shape, generator=stream))
    with torch.no_grad():
        for value in network.teacher.parameters():
            value.add_(0.05 * torch.randn(value.shape, generator=stream))
    return method, network


@pytest.mark.parametrize("positive", ["other_view", "released"])
def test_terms_are_the_written_formula(positive: str) -> None:
    method, network = filled(positive=positive)
    of = batch_of(LABELS, **AHEAD)
    found = method.losses(network, of)
    p, labels = method.p, of.sampled.labels
    trained, *heads = network.teacher
    parts = zip(
        method.logged, network.tail.both(of.sampled.views), network.tail.both(of.sampled.views, trained),
        (network.projector, network.prompt_projector), heads, (network.memory, network.prompt_memory), strict=True,
    )  # fmt: skip
    for name, rows, of_teacher, head, teacher_head, memory in parts:
        part = name.removesuffix("affine_pairs")
        z = normalize(of_teacher, dim=1)
        affine = affine_pairs(z.roll(8, dims=0), memory, p["neighbours"], p["quantile"])
        drawn = drawn_negatives(affine, 12, torch.rand(16, 40, generator=of.stream(f"{part}negatives")))
        pairs = with_labels(affine, drawn, labels.repeat(2), network.labels)
        first = z if positive == "released" and not part else z.roll(8, dims=0)
        candidates = teacher_head(of_teacher)
        expected = {
            "info_nce": info_nce(head(rows), 1.0, candidates),
            "sup_con": sup_con(head(rows), labels, labels >= 0, 0.07, candidates),
            "affinity": affinity(rows, first, memory, *pairs, 0.07),
        }
        for term, value in expected.items():
            torch.testing.assert_close(found.terms[f"{part}{term}"], value)
        assert affine.any()
        assert float(found.logged[name]) == pytest.approx(float(affine.sum()) / 16)
        assert torch.equal(found.kept[f"{part}memory"], z)
    assert not any(value.requires_grad for value in found.kept.values())


def test_terms_of_the_teacher_are_slow_loops() -> None:
    """A row's own row of the teacher is no candidate; its other view's is."""
    stream = torch.Generator().manual_seed(0)
    z, t = (normalize(torch.randn(6, 4, generator=stream, dtype=torch.float64), dim=1) for _ in range(2))
    labels = torch.tensor([0, 0, -1])
    classes, nce, sup = labels.repeat(2).tolist(), [], []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        shares = (t[others] @ z[i]).log_softmax(dim=0)
        nce.append(-shares[others.index((i + 3) % 6)])
        if classes[i] >= 0:
            candidates = [j for j in others if classes[j] >= 0]
            shares = (t[candidates] @ z[i] / 0.1).log_softmax(dim=0)
            sup.append(-shares[[classes[j] == classes[i] for j in candidates]].mean())
    torch.testing.assert_close(info_nce(z, 1.0, t), torch.stack(nce).mean())
    torch.testing.assert_close(sup_con(z, labels, labels >= 0, 0.1, t), torch.stack(sup).mean())
    assert sup_con(z, labels, labels < -1, 0.1, t) == 0


def test_the_affinity_replaces_a_share_of_info_nce() -> None:
    method, _ = method_and_network("promptcal", ramp_epochs=2, info_nce_weight=2.0, prompt_weight=0.5)
    for step, share in ((0, 0.0), (1, 0.1), (4, 0.4), (6, 0.6), (30, 0.6)):
        found = method.weights(Batch({}, epoch=step // 3, step=step % 3, steps=3))
        expected = {"info_nce": 1.3 * (1 - share), "sup_con": 0.35, "affinity": 1.3 * share}
        expected |= {f"prompt_{name}": weight / 2 for name, weight in expected.items()}
        assert found == pytest.approx(expected)
    assert found.keys() == method.terms().keys()


def test_the_first_stage_is_l_rep_on_both_parts() -> None:
    method, network = method_and_network("promptcal")
    first, of = method.stage(), batch_of(LABELS)
    assert type(first) is FirstStage
    assert first.p == method.p | {"epochs": method.p["stage_epochs"]}
    terms = first.losses(network, of).terms
    heads = (network.projector, network.prompt_projector)
    for part, rows, head in zip(("", "prompt_"), network.tail.both(of.sampled.views), heads, strict=True):
        for name, value in first.representation(head(rows), of.sampled.labels).items():
            torch.testing.assert_close(terms[f"{part}{name}"], value)
    usual = {"info_nce": 0.65, "sup_con": 0.35, "prompt_info_nce": 0.35 * 0.65, "prompt_sup_con": 0.35 * 0.35}
    assert first.weights(of) == pytest.approx(usual)
    assert terms.keys() == first.terms().keys()


class Watched(PromptCAL):
    """Keeps the state of the network around the start of the second stage, and of its optimisers."""

    def prepare(self, network: Any, look: Look) -> None:
        self.before = {name: value.clone() for name, value in network.state_dict().items()}
        super().prepare(network, look)
        self.after = {name: value.clone() for name, value in network.state_dict().items()}


def test_the_second_stage_starts_with_a_new_head_and_a_copy_as_teacher(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Watched, tail_of=tail_of, **small("promptcal", ema=1.0))
    method = made.row.method
    assert isinstance(method, Watched)
    for name, value in method.before.items():
        if not name.startswith(("prompt_projector.", "teacher.")):
            assert torch.equal(value, method.after[name]), name
    for i, name in enumerate(("tail.trained", "projector", "prompt_projector")):
        for key, value in method.after.items():
            if key.startswith(f"{name}."):
                assert torch.equal(value, method.after[key.replace(name, f"teacher.{i}", 1)]), key
    drawn, stage = method.after["prompt_projector.direction"], method.before["prompt_projector.direction"]
    assert not torch.allclose(drawn, stage, atol=0.05)
    assert drawn.abs().max() <= 6**-0.5  # untrained: within the bounds of its start
    # With ema 1 the teacher stays the copy, and the student does not.
    final = made.row.network.state_dict()
    assert all(torch.equal(final[key], value) for key, value in method.after.items() if key.startswith("teacher."))
    assert not torch.equal(final["projector.direction"], method.after["projector.direction"])
    assert len(recorder.calls) == (1 + 3) * STEPS
    assert made.row.steps == (1 + 3) * STEPS


@pytest.mark.parametrize("group", [0, 4])
def test_the_teacher_moves_once_a_step(group: int) -> None:
    method, network = filled(loss_group=group, batch_size=8)
    before = [value.clone() for value in network.teacher.parameters()]
    for part in batch_of(LABELS, **AHEAD).parts(method.loss_groups):
        with torch.no_grad():
            method.after_step(network, part, method.losses(network, part).kept)
    for old, now, own in zip(before, network.teacher.parameters(), network.student.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * old + 0.1 * own)


def test_memories_are_rings_of_the_last_rows() -> None:
    method, network = method_and_network("promptcal")
    method.prepare(network, look_of(0))
    rows, labels = [], []
    for step in range(4):
        of = batch_of([step % 2, -1, 1, -1, -1, -1, 0, -1], seed=step, step=step, steps=9)
        with torch.no_grad():
            found = method.losses(network, of)
            rows.append(found.kept["memory"])
            method.after_step(network, of, found.kept)
        labels += of.sampled.labels.repeat(2).tolist()
        assert (float(found.terms["affinity"]) == 0) == (step == 0)  # an empty memory
    assert int(network.added) == 64
    in_order = torch.cat(rows)[-40:].roll(64 % 40, dims=0)
    assert torch.equal(network.memory, in_order)
    assert network.labels.tolist() == torch.tensor(labels)[-40:].roll(24).tolist()
    torch.testing.assert_close(network.prompt_memory.norm(dim=1), torch.ones(40))


def test_memories_have_no_label_of_an_unlabelled_image(tmp_path: Path) -> None:
    made, _ = whole_run(tmp_path, load("promptcal"), tail_of=tail_of, **small("promptcal"))
    held = set(made.row.network.labels.tolist())
    assert held == set(made_up()[2].tolist()) == {-1, 0, 1}


@pytest.mark.parametrize("stop_at", [3, STEPS + 3])
def test_the_first_stage_is_resumed(tmp_path: Path, stop_at: int) -> None:
    values = small("promptcal", stage_epochs=2, epochs=1)
    whole, _ = whole_run(tmp_path, load("promptcal"), tail_of=tail_of, **values)
    again, rest = resumed_run(tmp_path, load("promptcal"), stop_at, tail_of=tail_of, **values)
    assert equal(again, whole)
    assert len(rest.calls) == (2 - stop_at // STEPS + 1) * STEPS


def test_checkpoints_have_the_teacher_and_the_memories_but_no_frozen_block(tmp_path: Path) -> None:
    made, _ = whole_run(tmp_path, load("promptcal"), tail_of=tail_of, **small("promptcal", epochs=1))
    saved = checkpoint.load(tmp_path / "whole.pt", "ctxgcd-state")["network"]
    assert {"memory", "prompt_memory", "labels", "added", "teacher.0.prompts", "tail.trained.prompts"} <= saved.keys()
    assert not any(".frozen" in name or "blocks.0." in name for name in saved)
    assert sum("blocks.1." in name for name in saved) == 2 * 12  # the student's and the teacher's last block
    trained = [value for value in made.row.network.parameters() if value.requires_grad]
    values = sum(value.numel() for value in trained)
    p = made.row.parameters | {"tail_blocks": 0}
    heads = METHODS["promptcal"].head_values(p, DIM)
    of_tail = sum(value.numel() for value in made.row.network.tail.parameters())
    assert heads == 2 * (values - of_tail) + 2 * 40 * DIM


def test_the_mechanism_is_idle_without_an_affine_pair() -> None:
    method = load("promptcal")(small("promptcal"))
    none = {"affine_pairs": 0.0, "prompt_affine_pairs": 0.0}
    assert method.idle([none, none]) == "no pair of an image and the memory was affine in any epoch"
    assert method.idle([none, none | {"prompt_affine_pairs": 0.01}]) == ""


def test_tight_clusters_have_no_affine_pair_which_is_logged() -> None:
    method, network = filled(quantile=0.8, neighbours=1)
    with torch.no_grad():
        network.memory.copy_(torch.eye(DIM).repeat(5, 1))
        network.prompt_memory.copy_(network.memory)
    found = method.losses(network, batch_of([-1] * 8, ids=[0] * 8, **AHEAD))
    assert found.logged["affine_pairs"] == found.logged["prompt_affine_pairs"] == 0
    assert all(value.isfinite() for value in found.terms.values())


@pytest.mark.parametrize(
    ("benchmark", "row", "sentence"),
    [
        ("cub50_vit", "promptcal", "view_bank is 4, but {}, so no output can be cached; set view_bank to 0"),
        ("cub", "promptcal+tail=adapter", "tail is an adapter after the frozen backbone, but {}; set tail to blocks"),
        (
            "cub",
            "promptcal+backbone=efficientnet_lite0",
            "{}, but tf_efficientnet_lite0 is not a ViT with a CLS token and learned positions; choose another "
            "backbone",
        ),
        (
            "cub",
            "promptcal+backbone=dinov3_vits16",
            "{}, but vit_small_patch16_dinov3.lvd1689m is not a ViT with a CLS token and learned positions; choose "
            "another backbone",
        ),
        (
            "cub",
            "promptcal+used_prompts=6",
            "used_prompts is 6, but each block has 5 prompts; give a smaller value",
        ),
        ("cub", "promptcal+memory_size=255", "memory_size is 255, but a step adds 256 rows; give at least 256"),
        (
            "cub",
            "promptcal+memory_size=256+neighbours=512",
            "neighbours is 512, but the graph has 512 nodes; give a smaller value",
        ),
    ],
)
def test_impossible_runs_are_refused_before_anything_runs(
    params: Params, benchmark: str, row: str, sentence: str
) -> None:
    why = "promptcal trains prompts in all blocks of the backbone"
    found = error_of(lambda: resolve(params, benchmark, row, 0))
    assert found == f"benchmark {benchmark}, row {row}: {sentence.format(why)}"


def test_values_of_the_sources_and_the_price(params: Params) -> None:
    expected = {  # stage_epochs, epochs, neighbours, quantile, memory_size, negatives
        **dict.fromkeys(("cub", "scars", "aircraft"), (200, 100, 5, 0.8, 4096, 1024)),
        **dict.fromkeys(("cifar10", "cifar100"), (200, 70, 10, 0.5, 4096, 1024)),
        "imagenet_100": (100, 70, 10, 0.5, 4096, 1024),
        "herbarium_19": (100, 100, 7, 0.8, 20000, 5000),
        "imagenet_1k": (100, 70, 7, 0.8, 20000, 5000),  # ours
    }
    names = ("stage_epochs", "epochs", "neighbours", "quantile", "memory_size", "negatives")
    images = Images(train=2048, test=500)
    for benchmark, values in expected.items():
        p = resolve(params, benchmark, "promptcal", 0)
        assert tuple(p[name] for name in names) == values
        assert (p["precision"], p["lr"]) == ("bf16", 0.8 if benchmark == "imagenet_1k" else 0.1)
        plain = work_of(images, 10, resolve(params, benchmark, "simgcd", 0))
        passes = 2.2 * values[0] + 3.3 * values[1]
        assert work_of(images, 10, p) == replace(plain, baseline=round(plain.baseline / 200 * passes))


def test_a_plan_says_what_further_devices_bring(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for row, noted in (("promptcal", True), ("simgcd", False)):
        text = write_plan(params, [Run("cub", row, 0)], Path("plan.csv"))
        assert ("promptcal: gradients run through the whole backbone" in text) == noted
    step = {"work": BENCHED_MEMORY, "ours": "900", "device": "cpu: x"}
    known = Measured([], {BENCHED_MEMORY: step}, None)
    assert known.memory("cub", resolve(params, "cub", "simgcd", 0)).host == 900
    assert known.memory("cub", resolve(params, "cub", "promptcal", 0)).host is None  # that of another kind of step
