"""Cached features: contents, size, resuming, and damaged files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.models.backbone import Backbone, cut
from ctxgcd.models.features import extract_test_view, extract_view_bank, finish_test_view, load_kept
from ctxgcd.models.weights import build
from ctxgcd.utils.seeding import Stream, generator
from tests.helpers.images import SHAPES, cropper_of, pack_shapes

torch.set_num_threads(1)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack_shapes(tmp_path)


def flat() -> Backbone:
    """A trunk that returns the pixels, so that cached outputs can be compared."""
    return Backbone(torch.nn.Flatten(), torch.nn.Identity(), 3 * 20 * 20)


@pytest.mark.parametrize("model", ["test_vit", "tf_efficientnet_lite0"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bf16", 2e-2)])
def test_frozen_features_of_a_cached_tail_input_equal_those_of_the_images(
    packed: Path, tmp_path: Path, model: str, precision: str, tolerance: float
) -> None:
    torch.manual_seed(0)
    net, cropper = build(model, 32).eval().requires_grad_(False), cropper_of(packed, 32)
    whole, cut_before = cut(net, 0), cut(net, 1)
    extract_test_view(whole, cropper, precision, tmp_path / "whole.npy")
    extract_test_view(cut_before, cropper, precision, tmp_path / "tail_input.npy")
    finish_test_view(cut_before.tail, tmp_path / "tail_input.npy", cropper, precision, tmp_path / "finished.npy")
    one, other = (load_kept(tmp_path / f"{name}.npy", (len(SHAPES), whole.dim)) for name in ("whole", "finished"))
    assert one.dtype == other.dtype
    torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.float16)])
def test_cached_test_views(packed: Path, tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    cropper = cropper_of(packed, 20)
    extract_test_view(flat(), cropper, precision, tmp_path / "kept.npy")
    kept = load_kept(tmp_path / "kept.npy", (len(SHAPES),))
    assert kept.dtype == dtype
    assert torch.equal(kept, cropper.test_view(torch.arange(len(SHAPES))).flatten(1).to(dtype))


def test_the_size_of_cached_features_is_printed_and_checked(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cropper = cropper_of(packed, 20)
    extract_view_bank(flat(), cropper, 5, 3, 0, "bf16", tmp_path / "bank.npy")
    assert "3 cached views of 5 images: 15 x 1,200 x 2 bytes = 0 MiB" in capsys.readouterr().out
    monkeypatch.setattr("ctxgcd.utils.files.shutil.disk_usage", lambda folder: SimpleNamespace(free=35_999))
    with pytest.raises(UserError, match=r"3 cached views of 5 images needs 0 MB more; free space"):
        extract_view_bank(flat(), cropper, 5, 3, 0, "bf16", tmp_path / "full.npy")
    assert not (tmp_path / "full.npy").exists()


def test_two_threads_write_the_features_of_one(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxgcd.models.features.CPU_PIXELS", 2 * 20**2)
    torch.manual_seed(0)
    trunk = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.Flatten())
    backbone = Backbone(trunk.requires_grad_(False), torch.nn.Identity(), 8 * 16 * 16)
    made = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        extract_view_bank(backbone, cropper_of(packed, 20), 5, 3, 0, "float32", tmp_path / f"{threads}.npy")
        made.append((tmp_path / f"{threads}.npy").read_bytes())
        assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    assert made[0] == made[1]


def test_a_killed_extraction_is_resumed_after_its_last_rows(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written rows are not computed again, and later rows have the same views as without the kill."""
    monkeypatch.setattr("ctxgcd.models.features.CPU_PIXELS", 2 * 20**2)
    monkeypatch.setattr("ctxgcd.models.features.SAVE_EVERY", 0)
    cropper, passed = cropper_of(packed, 20), []

    class Stopping(torch.nn.Flatten):
        stop_at = 4

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if len(passed) == self.stop_at:
                raise KeyboardInterrupt
            passed.append(len(images))
            return super().forward(images)

    counting = Backbone(Stopping(), torch.nn.Identity(), 3 * 20 * 20)
    extract_view_bank(flat(), cropper, 5, 3, 0, "float32", tmp_path / "whole.npy")
    with pytest.raises(KeyboardInterrupt):
        extract_view_bank(counting, cropper, 5, 3, 0, "float32", tmp_path / "bank.npy")
    assert not (tmp_path / "bank.npy").exists()
    assert passed == [2, 2, 1, 2]
    Stopping.stop_at = 100
    extract_view_bank(counting, cropper, 5, 3, 0, "float32", tmp_path / "bank.npy")
    assert sum(passed) == 15
    assert (tmp_path / "bank.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not list(tmp_path.glob(".bank*"))


def test_values_beyond_float16_are_refused(packed: Path, tmp_path: Path) -> None:
    huge = Backbone(torch.nn.Sequential(torch.nn.Flatten(), Times(1e6)), torch.nn.Identity(), 3)
    with pytest.raises(UserError, match=r"are not finite in torch.float16; set precision to float32"):
        extract_test_view(huge, cropper_of(packed, 20), "bf16", tmp_path / "kept.npy")


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor


def test_view_bank_rows(packed: Path, tmp_path: Path) -> None:
    """View v of image i is row v * images + i, and each view has a separate stream."""
    cropper, images, ids = cropper_of(packed, 20), 5, torch.arange(5)
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        extract_view_bank(flat(), cropper, images, 3, seed, "float32", tmp_path / f"{name}.npy")
    kept = load_kept(tmp_path / "a.npy", (3 * images,)).view(3, images, -1)
    for view in range(3):
        assert torch.equal(kept[view], cropper.train_view(ids, Stream(generator(4, "view_bank", view))).flatten(1))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert (tmp_path / "a.npy").read_bytes() != (tmp_path / "c.npy").read_bytes()


@pytest.mark.parametrize("kind", ["cut", "empty", "foreign", "absent", "other shape", "other numbers"])
def test_damaged_cached_features_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kept.npy"
    np.save(path, np.zeros((4, 3), np.float32))
    content = path.read_bytes()
    if kind == "absent":
        path.unlink()
    elif kind == "other numbers":
        np.save(path, np.zeros((5, 3), np.int64))
    elif kind != "other shape":
        path.write_bytes({"cut": content[:-8], "empty": b"", "foreign": b"something else"}[kind])
    with pytest.raises(UserError, match=r"cached features .* delete them and run the same command again"):
        load_kept(path, (5,))
