"""Benchmarks of training steps with the paper's ViT-B/16 (random weights), compared with a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision.transforms import transforms

from ctxgcd.bench.pictures import AUGMENT, CROP, MEAN, STD, names, packed_photographs
from ctxgcd.bench.work import Work, nothing, timed
from ctxgcd.catalogue.entries import load
from ctxgcd.config import completed, read
from ctxgcd.images.query_batches import query_batch
from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.step import Batch, Rows, weighted
from ctxgcd.models.backbone import cut
from ctxgcd.models.precision import has_bf16, kept
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training.devices import compiled, make_deterministic
from ctxgcd.training.loop import train_epoch
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews, FreshViews

MODEL, DEPTH = "vit_base_patch16_224.dino", 12
BANK = 2  # cached views per image; their number does not affect the time of a step
PHOTOGRAPHS = 1500  # maximum; longer measurements repeat them


@dataclass(frozen=True)
class Step:
    """The configuration of a step: parameters of the run, phase and number of blocks of the backbone."""

    p: dict[str, Any]
    context: bool
    depth: int = DEPTH

    @property
    def views(self) -> int:
        """Return the number of views of a step: two per image."""
        around = self.p["neighbour_images"] // self.p["k"] * self.p["k"] if self.context else 0
        return 2 * (self.p["batch_size"] + around)

    def epochs(self, views: int) -> tuple[int, int, float]:
        """Return the images per epoch, the epochs for about this many views, and the scale to the requested number."""
        steps = max(1, views // self.views)
        of_epoch = min(steps, PHOTOGRAPHS // self.p["batch_size"])
        epochs = steps // of_epoch
        return of_epoch * self.p["batch_size"], epochs, views / (epochs * of_epoch * self.views)


def step_of(device: torch.device, precision: str, context: bool) -> Step:
    """Return the paper's batch sizes (128 + 120 images) on a GPU; on a CPU, smaller ones of equal cost per view."""
    row = f"full-paper+precision={precision}"
    if device.type == "cpu":
        row += "+batch_size=16+neighbour_images=16+k=8"
    return Step(resolve(read(Path("params.yaml")), "cub", row, 0), context)


def _net(step: Step, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    net = timm.create_model(MODEL, pretrained=False, num_classes=0, depth=step.depth)
    return net.eval().requires_grad_(False).to(device)


def _photographs(folder: Path, views: int) -> None:
    """Return the maximum number of images for this many views: a step has two views of each image."""
    packed_photographs(folder, min(views // 2, PHOTOGRAPHS))


def _labels(images: int, device: torch.device) -> Tensor:
    """Return labels: half of the images have one of five classes."""
    return torch.where(torch.arange(images) % 2 == 0, torch.arange(images) % 5, -1).to(device)


# -- ours --------------------------------------------------------------------------------------------------


def prepared(step: Step, folder: Path, images: int, device: torch.device, bank: bool) -> tuple[Row, StepInputs]:
    """Return a run on `images` images, initialised as in train.run."""
    [row], inputs = prepared_rows([step], folder, images, device, bank)
    return row, inputs


def prepared_rows(
    steps: Sequence[Step], folder: Path, images: int, device: torch.device, bank: bool = False
) -> tuple[list[Row], StepInputs]:
    """Return runs that share their inputs, one for each step."""
    make_deterministic(device)
    step = steps[0]
    precision, backbone = step.p["precision"], cut(_net(step, device), 1)
    if bank:
        tokens = torch.empty(BANK + 1, images, 197, backbone.dim, device=device).normal_()
        tokens = kept(tokens, precision)
        views: BankViews | FreshViews = BankViews(tokens[:BANK], tokens[BANK])
    else:
        backbone = replace(backbone, trunk=compiled(backbone.trunk, CROP, precision, device))
        store = open_store(folder / "store.npz").to(device)
        views = FreshViews(Cropper(store, CROP, MEAN, STD, device), backbone, precision, folder)
    inputs, rows = StepInputs(views, _labels(images, device), precision, 0), []
    for each in steps:
        method = load(each.p["method"])(completed(each.p))
        network = method.network(deepcopy(backbone.tail), backbone.dim, inputs.old_classes).to(device)
        rows.append(Row(method, network.eval(), folder / "last.pt", "bench", {}))
    return rows, inputs


def epoch_of(step: Step, row: Row, inputs: StepInputs) -> int:
    """Prepare a run, so that the cost of the first epoch is not measured; return an epoch of the phase."""
    if step.context:  # the first epoch caches the test view
        inputs.features(row.network, torch.arange(len(inputs.labels), device=inputs.labels.device))
    epoch = step.p["T_warm"] if step.context else 0
    row.measured_in = frozenset()  # do not measure the sizes of the loss terms
    if inputs.labels.device.type == "cuda" or isinstance(inputs.views, BankViews):
        train_epoch(row, inputs, epoch)  # warm-up with a cheap epoch
    return epoch


def _ours(
    folder: Path, views: int, device: torch.device, context: bool, bank: bool = False, precision: str = "float32"
) -> float:
    step = step_of(device, precision, context)
    images, epochs, wanted = step.epochs(views)
    row, inputs = prepared(step, folder, images, device, bank)
    epoch = epoch_of(step, row, inputs)

    def work() -> None:
        for _ in range(epochs):
            train_epoch(row, inputs, epoch)

    return wanted * timed(work, device)


def _evaluation(folder: Path, images: int, device: torch.device) -> float:
    step = step_of(device, "float32", context=True)
    row, inputs = prepared(step, folder, images, device, bank=False)
    every = torch.arange(images, device=device)
    features = partial(inputs.features, row.network)
    features(every)

    def work() -> None:
        row.method.discover(row.network, features, inputs.labels, every, every[:0])
        inputs.look(row.network, 0).nearest(normalize(features(every), dim=1), step.p["k"] - 1)

    return timed(work, device)


def _checkpoints(folder: Path, writes: int, device: torch.device) -> float:
    step = step_of(device, "float32", context=False)
    row, inputs = prepared(step, folder, step.p["batch_size"], device, bank=True)
    train_epoch(row, inputs, 0)  # so that the checkpoint contains momentum

    def loop() -> None:
        for _ in range(writes):
            row.save()

    return timed(loop, device)


# Frozen blocks store no activations, so two of the twelve blocks have the same peak memory, except for weights.
SHALLOW = 2


def _step_of_248(device: torch.device) -> Step:
    """Measure the memory of a step with the paper's batch on a shallow backbone."""
    return Step(resolve(read(Path("params.yaml")), "cub", "full-paper+precision=float32", 0), True, SHALLOW)


def _ours_of_248(folder: Path, images: int, device: torch.device) -> float:
    step = _step_of_248(device)
    row, inputs = prepared(step, folder, step.p["batch_size"], device, bank=False)
    return timed(lambda: train_epoch(row, inputs, step.p["T_warm"]), device)


# -- reference -----------------------------------------------------------------------------------------------

TEST_VIEW = transforms.Compose([AUGMENT.transforms[0], transforms.CenterCrop(CROP), *AUGMENT.transforms[3:]])


class _Whole(nn.Module):
    """The whole backbone in place of our tail: images -> features; its last block is trained."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        net.blocks[-1].requires_grad_(True)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def _decoded(folder: Path, ids: Tensor, transform: Any, device: torch.device) -> Tensor:
    files = names(int(ids.max()) + 1)
    return torch.stack([transform(Image.open(folder / files[i]).convert("RGB")) for i in ids.tolist()]).to(device)


Clocked = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def plain_loop(
    step: Step, folder: Path, images: int, device: torch.device, clocked: Clocked = lambda part, call: call
) -> Callable[[], None]:
    """Run an epoch that decodes, resizes and crops every image again, with all rows of the whole backbone in float32.

    clocked: wraps the measured parts.
    """
    p = step.p
    method, labels = load(p["method"])(p), _labels(images, device)
    network = method.network(_Whole(_net(step, device)), 768, 5).to(device)
    groups = parameter_groups(network.named_parameters(), p["weight_decay"])
    optimiser = torch.optim.SGD(groups, lr=p["lr"], momentum=p["momentum"])
    lists = torch.stack([torch.randperm(images)[: p["k"] - 1] for _ in range(images)])
    decoded, forward = clocked("views", _decoded), clocked("forward and losses", method.losses)
    update = clocked("optimiser", optimiser.step)

    def rows(ids: Tensor) -> Rows:
        views = torch.cat([decoded(folder, ids, AUGMENT, device) for _ in range(2)])
        return Rows(views, ids.to(device), labels[ids.to(device)])

    def loop() -> None:
        for ids in torch.arange(images).split(p["batch_size"]):
            groups = {"sampled": rows(ids)}
            if step.context:
                groups["neighbours"] = rows(query_batch(lists, p["neighbour_images"] // p["k"], torch.Generator()))
            batch = Batch(groups)
            loss = weighted(forward(network, batch).terms, method.weights(batch))
            optimiser.zero_grad()
            clocked("backward", loss.backward)()
            update()
            loss.item()

    return loop


def _plain(folder: Path, views: int, device: torch.device, context: bool) -> float:
    step = step_of(device, "float32", context)
    images, epochs, wanted = step.epochs(views)
    loop = plain_loop(step, folder, images, device)
    return wanted * timed(lambda: [loop() for _ in range(epochs)], device)


def _plain_of_248(folder: Path, images: int, device: torch.device) -> float:
    step = _step_of_248(device)
    return timed(plain_loop(step, folder, step.p["batch_size"], device), device)


def _plain_evaluation(folder: Path, images: int, device: torch.device) -> float:
    net = _net(step_of(device, "float32", context=True), device)

    @torch.no_grad()
    def loop() -> None:
        parts = torch.arange(images).split(16)
        features = [normalize(net(_decoded(folder, ids, TEST_VIEW, device)), dim=1) for ids in parts]
        for ids in parts:  # the neighbour lists need another pass over the images
            features.append(normalize(net(_decoded(folder, ids, TEST_VIEW, device)), dim=1))
        z = torch.cat(features[len(parts) :])
        (z @ z.T).topk(9)

    return timed(loop, device)


def _plain_checkpoints(folder: Path, writes: int, device: torch.device) -> float:
    step = step_of(device, "float32", context=False)
    network = load(step.p["method"])(step.p).network(_Whole(_net(step, device)), 768, 5)
    momentum = [torch.zeros_like(value) for value in network.parameters() if value.requires_grad]

    def loop() -> None:
        for _ in range(writes):
            torch.save({"model": network.state_dict(), "optimiser": momentum}, folder / "plain.pt")

    return timed(loop, device)


# Defined at module level, so that they can be pickled for the measuring processes.
baseline, plain_baseline = partial(_ours, context=False), partial(_plain, context=False)
contextual, plain_contextual = partial(_ours, context=True), partial(_plain, context=True)
banked = partial(_ours, context=True, bank=True)
half_baseline, half_contextual = partial(baseline, precision="bf16"), partial(contextual, precision="bf16")
half_banked = partial(banked, precision="bf16")


def works(device: torch.device) -> list[Work]:
    """Return the benchmarks of a device; bf16 only if the device supports it."""
    on_cuda = device.type == "cuda"
    how: dict[str, Any] = {"threads": 2, "least": 2 * 496 if on_cuda else 64}
    n = (16_384, 16_368) if on_cuda else (64, 128)
    plain = (1_024, 992) if on_cuda else (64, 128)

    def of(phase: str, kind: str, ours: Any, size: int = 0) -> Work:
        i = int(phase == "contextual")
        reference = plain_contextual if i else plain_baseline
        name = f"training step, {phase} phase, {kind}"
        return Work(name, "views/s", (size or n[i],), _photographs, ours, reference, plain[i], **how)

    made = [of("baseline", "exact, float32", baseline), of("contextual", "exact, float32", contextual)]
    if has_bf16(device):
        made += [of("baseline", "exact, bf16", half_baseline), of("contextual", "exact, bf16", half_contextual)]
    made.append(of("contextual", "view bank, float32", banked, 0 if on_cuda else 1024))
    if has_bf16(device):
        made.append(of("contextual", "view bank, bf16", half_banked, 0 if on_cuda else 1024))
    photos = packed_photographs
    both: dict[str, Any] = {"threads": 2}
    name = "evaluation and neighbour lists"
    images = 1408 if on_cuda else 64
    made.append(Work(name, "images/s", (images,), photos, _evaluation, _plain_evaluation, 32, least=32, **both))
    name = f"memory of a step of 248 images, {SHALLOW} of {DEPTH} blocks"
    made.append(Work(name, "MiB", (248,), photos, _ours_of_248, _plain_of_248, least=248, of_memory=True, **both))
    return [*made, Work("checkpoint write", "writes/s", (5,), nothing, _checkpoints, _plain_checkpoints, **both)]
