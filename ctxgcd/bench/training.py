"""A training's steps with the paper's ViT-B/16 (random weights): our loop beside a plainly written one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision.transforms import transforms

from ctxgcd.bench.pictures import AUGMENT, CROP, MEAN, STD, names, packed_photographs
from ctxgcd.bench.work import Work, timed
from ctxgcd.config import read
from ctxgcd.context.batches import query_batch
from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from ctxgcd.methods.full import Full
from ctxgcd.methods.method import Batch
from ctxgcd.models.backbone import cut
from ctxgcd.runs import resolve
from ctxgcd.training.devices import keep_freed_memory
from ctxgcd.training.loop import Trainer
from ctxgcd.training.optimiser import parameter_groups
from ctxgcd.training.views import BankViews, FreshViews

MODEL = "vit_base_patch16_224.dino"
ROW = "full-paper+batch_size=16+neighbour_images=16+k=8"  # 32 views a step, 64 once the context terms act
SAMPLED, AROUND, K = 16, 16, 8
BANK = 2  # kept views an image: how many there are changes no step's time
TEACHER = 0.07


def _parameters() -> dict[str, Any]:
    return resolve(read(Path("params.yaml")), "cub", ROW, 0)


def _net(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    net = timm.create_model(MODEL, pretrained=False, num_classes=0).eval().requires_grad_(False)
    return net.to(device)


def _labels(images: int, device: torch.device) -> Tensor:
    """Half of the images have one of five classes."""
    return torch.where(torch.arange(images) % 2 == 0, torch.arange(images) % 5, -1).to(device)


def images_of(views: int, context: bool) -> int:
    """Images of which an epoch makes so many views."""
    return views // (2 * (SAMPLED + (AROUND if context else 0))) * SAMPLED


# -- ours --------------------------------------------------------------------------------------------------


def _trainer(folder: Path, images: int, device: torch.device, bank: bool) -> Trainer:
    if device.type == "cpu":
        keep_freed_memory()
    p, backbone = _parameters(), cut(_net(device), 1)
    if bank:
        kept = torch.randn(BANK + 1, images, 197, backbone.dim, device=device)
        views: BankViews | FreshViews = BankViews(kept[:BANK], kept[BANK])
    else:
        store = open_store(folder / "store.npz").to(device)
        views = FreshViews(Cropper(store, CROP, MEAN, STD, device), backbone)
    method = Full(p)
    network = method.network(backbone.tail, backbone.dim).to(device)
    return Trainer(p, method, network.eval(), views, _labels(images, device), folder / "last.pt", "bench")


def _epoch(folder: Path, views: int, device: torch.device, context: bool, bank: bool) -> float:
    images = images_of(views, context)
    trainer = _trainer(folder, images, device, bank)
    epoch = trainer.parameters["T_warm"] if context else 0
    if context:  # the first epoch keeps the test view; the work is what every later one costs
        trainer.features(torch.arange(images, device=device))
    trainer.method.active_from = lambda: {"none": -1}  # type: ignore[method-assign]  # no sizes of terms in a step
    return timed(lambda: trainer._epoch(epoch), device)


def _baseline(folder: Path, views: int, device: torch.device) -> float:
    return _epoch(folder, views, device, context=False, bank=False)


def _context(folder: Path, views: int, device: torch.device) -> float:
    return _epoch(folder, views, device, context=True, bank=False)


def _banked(folder: Path, views: int, device: torch.device) -> float:
    return _epoch(folder, views, device, context=True, bank=True)


def _evaluation(folder: Path, images: int, device: torch.device) -> float:
    trainer = _trainer(folder, images, device, bank=False)
    every = torch.arange(images, device=device)
    trainer.features(every)

    def work() -> None:
        trainer.method.discover(trainer.network, trainer.features, trainer.labels, every, every[:0])
        trainer._neighbour_lists()

    return timed(work, device)


def _checkpoints(folder: Path, writes: int, device: torch.device) -> float:
    trainer = _trainer(folder, SAMPLED, device, bank=True)
    trainer._epoch(0)  # so that there is momentum to be kept

    def loop() -> None:
        for _ in range(writes):
            trainer._save()

    return timed(loop, device)


# -- plainly -----------------------------------------------------------------------------------------------

TEST_VIEW = transforms.Compose([AUGMENT.transforms[0], transforms.CenterCrop(CROP), *AUGMENT.transforms[3:]])


class _Whole(nn.Module):
    """The whole backbone where our tail stands: images -> features; its last block trains."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        net.blocks[-1].requires_grad_(True)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def _decoded(folder: Path, ids: Tensor, transform: Any, device: torch.device) -> Tensor:
    files = names(int(ids.max()) + 1)
    return torch.stack([transform(Image.open(folder / files[i]).convert("RGB")) for i in ids.tolist()]).to(device)


def _plain_step(folder: Path, views: int, device: torch.device, context: bool) -> float:
    """Decode, resize, crop; the whole backbone, of the last block all rows; float32; nothing kept."""
    p, images = _parameters(), images_of(views, context)
    method, labels = Full(p), _labels(images, device)
    network = method.network(_Whole(_net(device)), 768).to(device)
    groups = parameter_groups(network.named_parameters(), p["weight_decay"])
    optimiser = torch.optim.SGD(groups, lr=p["lr"], momentum=p["momentum"])
    lists = torch.stack([torch.randperm(images)[: K - 1] for _ in range(images)])

    def pair(ids: Tensor) -> Tensor:
        return torch.cat([_decoded(folder, ids, AUGMENT, device) for _ in range(2)])

    def loop() -> None:
        for ids in torch.arange(images).split(SAMPLED):
            batch = Batch(pair(ids), labels[ids.to(device)])
            if context:
                around = query_batch(lists, AROUND // K, torch.Generator())
                batch = Batch(batch.sampled, batch.labels, pair(around), torch.cat([ids, around]).to(device))
            loss = method.losses(network, batch, TEACHER)["loss"]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()

    return timed(loop, device)


def _plain_baseline(folder: Path, views: int, device: torch.device) -> float:
    return _plain_step(folder, views, device, context=False)


def _plain_context(folder: Path, views: int, device: torch.device) -> float:
    return _plain_step(folder, views, device, context=True)


def _plain_evaluation(folder: Path, images: int, device: torch.device) -> float:
    net = _net(device)

    @torch.no_grad()
    def loop() -> None:
        parts = torch.arange(images).split(SAMPLED)
        features = [normalize(net(_decoded(folder, ids, TEST_VIEW, device)), dim=1) for ids in parts]
        for ids in parts:  # the lists come from another pass over the images
            features.append(normalize(net(_decoded(folder, ids, TEST_VIEW, device)), dim=1))
        z = torch.cat(features[len(parts) :])
        (z @ z.T).topk(K)

    return timed(loop, device)


def _plain_checkpoints(folder: Path, writes: int, device: torch.device) -> float:
    network = Full(_parameters()).network(_Whole(_net(device)), 768)
    momentum = [torch.zeros_like(value) for value in network.parameters() if value.requires_grad]

    def loop() -> None:
        for _ in range(writes):
            torch.save({"model": network.state_dict(), "optimiser": momentum}, folder / "plain.pt")

    return timed(loop, device)


PHOTOS = packed_photographs
STEP = "training step, {} phase, {}"
WORKS = (
    Work(STEP.format("baseline", "exact"), "views/s", 64, PHOTOS, _baseline, _plain_baseline, 2, 64),
    Work(STEP.format("contextual", "exact"), "views/s", 128, PHOTOS, _context, _plain_context, 2, 128),
    Work(STEP.format("contextual", "view bank"), "views/s", 128, PHOTOS, _banked, _plain_context, 2, 128),
    Work("evaluation and neighbour lists", "images/s", 64, PHOTOS, _evaluation, _plain_evaluation, 2, 32),
    Work("checkpoint write", "writes/s", 5, PHOTOS, _checkpoints, _plain_checkpoints, 2, 1),
)
