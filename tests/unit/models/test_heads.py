"""Heads, their initial values and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ctxgcd.models.heads import CosineClassifier, Projector, regrouped
from tests.helpers.models import seeded

torch.set_num_threads(1)


def test_projector() -> None:
    projector = Projector(48, 256, 16, generator=seeded())
    linear = [layer for layer in projector if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(256, 48), (256, 256), (16, 256)]
    for layer in linear:
        assert not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(layer.weight.mean().item()) < 0.001
    x = torch.randn(3, 48, generator=seeded(1))
    hidden = x
    for layer in linear[:-1]:
        product = hidden @ layer.weight.T
        hidden = product * 0.5 * (1 + torch.erf(product / math.sqrt(2)))
    torch.testing.assert_close(projector(x), hidden @ linear[-1].weight.T)
    assert all(p.requires_grad and p.device.type == "cpu" for p in projector.parameters())


def test_heads_draw_from_their_generator_only() -> None:
    def heads(seed: int) -> list[Tensor]:
        generator = seeded(seed)
        made = nn.ModuleList([Projector(8, 8, 4, generator=generator), CosineClassifier(8, 5, generator=generator)])
        return [parameter.detach() for parameter in made.parameters()]

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = heads(0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert all(torch.equal(a, b) for a, b in zip(first, heads(0), strict=True))
    assert not torch.equal(first[0], heads(1)[0])
    assert not torch.equal(first[-1], heads(1)[-1])


def test_classifier_start_and_output() -> None:
    classifier = CosineClassifier(64, 200, generator=seeded())
    assert [name for name, _ in classifier.named_parameters()] == ["direction"]
    direction = classifier.direction.detach()
    bound = 1 / math.sqrt(64)
    assert direction.abs().max() <= bound
    assert direction.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    x = torch.randn(4, 64, generator=seeded(1)) * 30
    expected = torch.cosine_similarity(x[:, None], direction[None], dim=2)
    torch.testing.assert_close(classifier(x), expected)
    torch.testing.assert_close(classifier(x * 7), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(classifier(x), classifier(x.clone()))
        assert classifier(x).dtype == torch.float32
        torch.testing.assert_close(classifier(x), expected)
    assert classifier(torch.zeros(1, 64)).isfinite().all()


def test_classifier_trains_as_a_weight_norm_layer() -> None:
    ours = CosineClassifier(12, 5, generator=seeded()).double()
    layer = nn.Linear(12, 5, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(ours.direction)
    theirs = weight_norm(layer)
    gain, direction = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    with torch.no_grad():
        gain.fill_(1)
    gain.requires_grad_(False)
    optimisers = [
        torch.optim.SGD([parameter], lr=0.5, momentum=0.9, weight_decay=0.1)
        for parameter in (ours.direction, direction)
    ]
    start = ours.direction.detach().norm(dim=1)
    for step in range(5):
        x = torch.randn(7, 12, dtype=torch.float64, generator=seeded(step))
        for model, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            (model(nn.functional.normalize(x, dim=1)) / 0.1).logsumexp(dim=1).sum().backward()
            optimiser.step()
    torch.testing.assert_close(ours.direction, direction, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(ours.direction.detach().norm(dim=1), start)  # never renormalised
    assert torch.autograd.gradcheck(ours, torch.randn(3, 12, dtype=torch.float64, requires_grad=True))


def test_centres_divide_new_classes_and_leave_old_ones() -> None:
    cosines = torch.tensor([[0.9, 0.1, 0.8, 0.2], [0.1, 0.2, 0.3, 0.6]])  # two old classes, two new ones
    features = torch.tensor([[0.0, 2.0], [4.0, 0.0]])
    found = regrouped(cosines, features, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    # The first image is nearest to the second centre, the second image to the first.
    torch.testing.assert_close(found, torch.tensor([[0.9, 0.1, -0.2, 0.8], [0.1, 0.2, 0.6, -0.4]]))


def test_centres_do_not_change_which_images_are_old() -> None:
    stream = seeded(3)
    cosines, features = torch.rand(200, 7, generator=stream), torch.randn(200, 5, generator=stream)
    centres = torch.nn.functional.normalize(torch.randn(3, 5, generator=stream), dim=1)
    before, after = cosines.argmax(dim=1), regrouped(cosines, features, centres).argmax(dim=1)
    assert 0 < (before >= 4).sum() < 200
    assert torch.equal(torch.where(before >= 4, 4, before), torch.where(after >= 4, 4, after))
    nearest = (features / features.norm(dim=1, keepdim=True) @ centres.T).argmax(dim=1) + 4
    assert torch.equal(after[after >= 4], nearest[before >= 4])
