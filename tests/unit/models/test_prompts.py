"""A prompted ViT: what it trains and keeps, its passes in parts, and models that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ctxgcd.models import prompts
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.prompts import PromptTail, prompted
from tests.helpers.models import images, randomised, seeded, trainable
from tests.helpers.refusals import error_of

torch.set_num_threads(1)

DEPTH, DIM = 3, 192


def vit(name: str = "vit_tiny_patch16_224", side: int = 32) -> nn.Module:
    net = timm.create_model(name, img_size=side, num_classes=0, depth=DEPTH)
    return randomised(net).eval().requires_grad_(False)


def backbone(trained: int = 1) -> Backbone:
    return prompted(vit(), trained, 4, 2, generator=seeded())


def by_hand(net: nn.Module, tail: PromptTail, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return CLS row and mean prompt row of each image by itself, from timm's modules."""
    found = []
    for image in x:
        tokens = net._pos_embed(net.patch_embed(image[None]))
        for block, own in zip(net.blocks, tail.trained.prompts, strict=True):
            tokens = block(torch.cat([tokens[:, :1], own[None], tokens[:, 1:]], dim=1))
            tokens = (
                torch.cat([tokens[:, :1], tokens[:, 1 + len(own) :]], dim=1) if block is not net.blocks[-1] else tokens
            )
        found.append(net.norm(tokens)[0])
    rows = torch.stack(found)
    return rows[:, 0], rows[:, 1:3].mean(dim=1)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2.lvd142m"])
def test_prompts_are_between_the_cls_token_and_the_others(name: str) -> None:
    net = vit(name, 28 if "14" in name else 32)
    cut = prompted(net, 1, 4, 2, generator=seeded())
    x = torch.randn(3, 3, *net.patch_embed.img_size, generator=seeded(1))
    tokens = cut.trunk(x)
    for found, expected in zip(cut.tail.both(tokens), by_hand(net, cut.tail, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(cut.tail(tokens), cut.tail.both(tokens)[0])
    assert cut.dim == cut.tail(tokens).shape[1]


@pytest.mark.parametrize("trained", [0, 1, 3])
def test_prompts_and_the_last_blocks_train_and_only_they_are_stored(trained: int) -> None:
    tail = backbone(trained).tail
    of_block = [name for name, _ in vit().blocks[0].named_parameters()]
    expected = {f"trained.blocks.{block}.{name}" for block in range(DEPTH - trained, DEPTH) for name in of_block}
    expected |= {"trained.prompts"}
    assert trainable(tail).keys() == expected == tail.state_dict().keys()
    assert tail.trained.prompts.shape == (DEPTH, 4, DIM)
    assert float(tail.trained.prompts.detach().std()) == pytest.approx(0.02, rel=0.1)
    tail.both(backbone().trunk(images()))[1].sum().backward()
    assert all(value.grad is not None for value in tail.parameters())
    assert (tail.trained.prompts.grad.flatten(1).norm(dim=1) > 0).all()


def noting(passes: list[int]) -> Callable[..., Any]:
    def noted(function: Any, tokens: Tensor, *given: Any, **options: Any) -> Any:
        passes.append(len(tokens))
        return checkpoint(function, tokens, *given, **options)

    return noted


@pytest.mark.parametrize("half", [False, True])
def test_activations_that_are_computed_again_change_no_bit(monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    monkeypatch.setattr(prompts, "CPU_TOKENS", 20)  # two images a pass
    found = []
    for limit, stores in ((4 * 2**30, True), (0, False)):
        passes: list[int] = []  # images of each pass that is computed again
        monkeypatch.setattr(prompts, "IN_MEMORY", limit)
        monkeypatch.setattr(prompts, "checkpoint", noting(passes))
        cut = backbone()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            cls, mean = cut.tail.both(cut.trunk(images()))
            loss = cls.sum() + mean.square().sum()
        names, values = zip(*cut.tail.named_parameters(), strict=True)
        # Several passes back through one graph, as the sizes of terms are measured.
        first = torch.autograd.grad(loss, values, retain_graph=True)
        second = torch.autograd.grad(loss, values, retain_graph=True)
        loss.backward()
        assert passes == ([] if stores else [2, 2, 1])
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        found.append({"cls": cls, "mean": mean, **{n: v.grad for n, v in zip(names, values, strict=True)}})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_pass_in_parts_is_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = backbone()
    tokens = cut.trunk(images())
    whole = cut.tail.both(tokens)
    for most in (1, 20):
        monkeypatch.setattr(prompts, "CPU_TOKENS", most)
        for found, expected in zip(cut.tail.both(tokens), whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_other_weights_of_what_trains_can_be_passed() -> None:
    cut, other = backbone(), backbone()
    with torch.no_grad():
        for value in other.tail.parameters():
            value.add_(0.1)
    tokens = cut.trunk(images())
    assert torch.equal(cut.tail.both(tokens, other.tail.trained)[0], other.tail(tokens))
    assert not torch.equal(cut.tail(tokens), other.tail(tokens))


@pytest.mark.parametrize(
    ("name", "changes", "trained"),
    [
        ("tf_efficientnet_lite0", {}, 1),
        ("vit_small_patch16_dinov3.lvd1689m", {"img_size": 32}, 1),
        ("vit_base_patch16_siglip_224", {"img_size": 32, "depth": 2}, 1),
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}, 3),
    ],
)
def test_models_that_cannot_be_prompted_are_refused(name: str, changes: dict[str, int], trained: int) -> None:
    net = timm.create_model(name, num_classes=0, **changes)
    found = error_of(lambda: prompted(net, trained, 4, 2, generator=seeded()))
    assert f"{type(net).__name__} cannot be prompted with tail_blocks {trained}" in found
