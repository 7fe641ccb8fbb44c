"""Packing of small images and odd files, interruptions, and errors."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, transforms
from torchvision.transforms import functional as F

from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.errors import UserError
from ctxgcd.images.pack import CHUNK, pack
from ctxgcd.images.packed import pixels_file
from ctxgcd.images.resize import Taps, enlarge, enlarging_taps
from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from tests.helpers.layouts import write_fixture

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALISE = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def write(folder: Path, count: int, side: int = 30) -> list[str]:
    folder.mkdir()
    for i in range(count):
        Image.fromarray(noise(side, side + i % 3, seed=i)).save(folder / f"{i:04d}.png")
    return [f"{i:04d}.png" for i in range(count)]


def views_are_pils(index: Path, images: list[Image.Image], size: int, crop: int) -> None:
    """Compare random cuts and the test view of every image with torchvision's pipeline on PIL images."""
    cropper, draw = Cropper(open_store(index), crop, MEAN, STD), random.Random(0)
    whole = [transforms.Resize(size, InterpolationMode.BICUBIC, antialias=True)(image) for image in images]
    ids = torch.arange(len(images))
    for i, found in enumerate(cropper.test_view(ids)):
        assert torch.equal(found, NORMALISE(transforms.CenterCrop(crop)(whole[i]))), i
    places = [
        (draw.randint(0, im.height - crop), draw.randint(0, im.width - crop), draw.random() < 0.5) for im in whole
    ]
    tops, lefts, flips = (torch.tensor(values) for values in zip(*places, strict=True))
    for i, found in enumerate(cropper.cut(ids, tops, lefts, flips)):
        image = F.crop(whole[i], places[i][0], places[i][1], crop, crop)
        assert torch.equal(found, NORMALISE(F.hflip(image) if places[i][2] else image)), i


# -- small images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 2, 3, 5, 8, 28, 31, 32, 33, 64])
@pytest.mark.parametrize("extreme", [False, True])
def test_enlarging_equals_pil(side: int, extreme: bool) -> None:
    for size in (side + 1, side + 2, 2 * side, 73, 100, 256):
        image = noise(side, side, seed=size)
        image = (image > 127).astype(np.uint8) * 255 if extreme else image
        taps = enlarging_taps(side, size)
        whole = Taps(taps.places[None], taps.weights[None])
        found = enlarge(torch.from_numpy(image)[None], whole, whole)[0]
        assert np.array_equal(found, np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)))


def test_cifar_is_stored_small_and_viewed_large(tmp_path: Path) -> None:
    write_fixture("cifar10", tmp_path, train_per_class=30)
    reader, folder = READERS["cifar10"], tmp_path / "cifar10"
    paths = reader.manifest(folder)["path"].tolist()
    pack("cifar10", folder, paths, 256, tmp_path / "store.npz", 1)
    assert pixels_file(tmp_path / "store.npz").stat().st_size == len(paths) * 3072
    some = paths[:40]
    pack("cifar10", folder, some, 256, tmp_path / "some.npz", 1)
    views_are_pils(tmp_path / "some.npz", list(reader.images(folder, some)), 256, 224)
    # Where the views are smaller than the images, these are resized while packing, like all others.
    pack("cifar10", folder, some, 24, tmp_path / "less.npz", 1)
    assert open_store(tmp_path / "less.npz").side is None
    views_are_pils(tmp_path / "less.npz", list(reader.images(folder, some)), 24, 20)


def test_a_small_square_first_image_does_not_set_the_size(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 2 * CHUNK, side=10)  # 10 x 10, 10 x 11, ...
    digest = pack("cub", tmp_path / "images", names, 16, tmp_path / "store.npz", 2)
    assert open_store(tmp_path / "store.npz").side is None
    assert digest == pack("cub", tmp_path / "images", names, 16, tmp_path / "again.npz", 1)
    views_are_pils(tmp_path / "store.npz", [Image.open(tmp_path / "images" / name) for name in names], 16, 12)


# -- odd files -------------------------------------------------------------------------------------------


def odd_images(folder: Path) -> list[str]:
    """Files with unusual shapes and modes, and with a rotation in EXIF."""
    folder.mkdir()
    shapes = {"panorama": (40, 4000), "tower": (4000, 40), "dot": (1, 1), "line": (1, 40), "column": (40, 1)}
    for name, (height, width) in shapes.items():
        Image.fromarray(noise(height, width)).save(folder / f"{name}.png")
    base = Image.fromarray(noise(50, 41))
    for mode in ("L", "LA", "RGBA", "1", "P", "I;16", "CMYK", "YCbCr"):
        suffix = "jpg" if mode in ("CMYK", "YCbCr") else "png"
        image = Image.fromarray(noise(50, 41)[..., 0].astype(np.uint16) * 200) if mode == "I;16" else base.convert(mode)
        image.save(folder / f"{mode.replace(';', '')}.{suffix}")
    base.quantize(8).save(folder / "transparent.png", transparency=3)
    base.quantize(8).save(folder / "moving.gif", save_all=True, append_images=[base.rotate(90).quantize(8)])
    exif = Image.Exif()
    exif[0x0112] = 6  # a rotation by 90 degrees, which the published loaders ignore
    base.save(folder / "turned.jpg", exif=exif)
    return sorted(path.name for path in folder.iterdir())


def test_odd_files_are_decoded_as_by_the_published_loaders(tmp_path: Path) -> None:
    names = odd_images(tmp_path / "images")
    assert len(names) == 16
    pack("cub", tmp_path / "images", names, 36, tmp_path / "store.npz", 1)
    images = []
    for name in names:
        with Image.open(tmp_path / "images" / name) as image:
            images.append(image.convert("RGB"))
    views_are_pils(tmp_path / "store.npz", images, 36, 32)


def test_a_wide_panorama_is_packed_and_a_decompression_bomb_refused(tmp_path: Path) -> None:
    Image.new("RGB", (20_000, 200)).save(tmp_path / "panorama.png")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    pack("cub", tmp_path, ["panorama.png"], 24, tmp_path / "store.npz", 1)
    assert (int(open_store(tmp_path / "store.npz").widths[0]), len(open_store(tmp_path / "store.npz"))) == (2400, 1)
    with pytest.raises(UserError, match=r"bomb\.png cannot be decoded .*decompression bomb"):
        pack("cub", tmp_path, ["panorama.png", "bomb.png"], 24, tmp_path / "bomb.npz", 1)


def test_every_undecodable_image_is_listed(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 2 * CHUNK + 10)
    broken = [names[3], names[CHUNK + 1], names[-1]]
    for name in broken[:2]:
        (tmp_path / "images" / name).write_bytes((tmp_path / "images" / name).read_bytes()[:90])
    (tmp_path / "images" / broken[2]).unlink()
    with pytest.raises(UserError) as raised:
        pack("cub", tmp_path / "images", names, 24, tmp_path / "store.npz", 2)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"3 of {len(names)} images cannot be used (all listed in ")
    listed = (tmp_path / "store.undecodable.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == broken
    assert "cannot be decoded" in listed[0]
    assert "is missing" in listed[2]


def test_a_truncated_batch_is_refused(tmp_path: Path) -> None:
    write_fixture("cifar10", tmp_path, train_per_class=5)
    batch = tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_2"
    paths = READERS["cifar10"].manifest(tmp_path / "cifar10")["path"].tolist()
    batch.write_bytes(pickle.dumps({"data": 1}))
    with pytest.raises(UserError, match="data_batch_2 has no uint8 array") as raised:
        pack("cifar10", tmp_path / "cifar10", paths, 40, tmp_path / "store.npz", 1)
    assert str(raised.value).count("data_batch_2") == 1
    listed = (tmp_path / "store.undecodable.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == [path for path in paths if path.startswith("data_batch_2#")]


def test_nothing_to_pack(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the split has no images"):
        pack("cub", tmp_path, [], 24, tmp_path / "store.npz", 1)


# -- interruptions ---------------------------------------------------------------------------------------


def packing(folder: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    """Pack a folder in a separate process, with its workers in one process group."""
    code = (
        "from pathlib import Path\nfrom ctxgcd.images.pack import pack\n"
        f"folder = Path({str(folder)!r})\nnames = sorted(path.name for path in folder.iterdir())\n"
        f"print(pack('cub', folder, names, 24, Path({str(out)!r}), {workers}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.slow
def test_packing_killed_many_times_gives_the_same_store(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 10 * CHUNK, side=60)
    whole = pack("cub", tmp_path / "images", names, 24, tmp_path / "whole.npz", 2)
    out, journal, draw, seen = tmp_path / "store.npz", tmp_path / ".store.journal", random.Random(0), []
    for _ in range(3):
        process = packing(tmp_path / "images", out, 2)
        before, begun = seen[-1] if seen else 0, time.monotonic()
        while lines(journal) <= before + 1 and process.poll() is None and time.monotonic() - begun < 60:
            time.sleep(0.005)
        time.sleep(draw.random() * 0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seen.append(lines(journal))
    assert seen[0] < seen[1] < seen[2]  # finished chunks stay finished
    journal.write_text(journal.read_text() + '{"shapes": [[1')  # truncated in the middle of a line by a kill
    (tmp_path / ".store.part").open("ab").write(b"torn")
    done = packing(tmp_path / "images", out, 1)
    output = done.communicate(timeout=60)[0].decode()
    assert output.split()[-1] == whole
    assert pixels_file(out).read_bytes() == pixels_file(tmp_path / "whole.npz").read_bytes()
    assert not journal.exists()


def lines(journal: Path) -> int:
    return journal.read_text().count("\n") if journal.exists() else 0


@pytest.mark.parametrize("fault", ["other images", "pixels changed", "pixels short", "no journal", "nonsense"])
def test_a_foreign_or_damaged_part_is_not_resumed(tmp_path: Path, fault: str) -> None:
    names = write(tmp_path / "images", CHUNK + 5)
    whole = pack("cub", tmp_path / "images", names, 24, tmp_path / "whole.npz", 1)
    (tmp_path / "images" / names[-1]).rename(tmp_path / "kept.png")
    with pytest.raises(UserError, match="is missing"):
        pack("cub", tmp_path / "images", names, 24, tmp_path / "store.npz", 1)
    (tmp_path / "kept.png").rename(tmp_path / "images" / names[-1])
    journal, part = tmp_path / ".store.journal", tmp_path / ".store.part"
    assert lines(journal) == 2  # the key and one chunk
    if fault == "other images":
        names = names[::-1]
        whole = pack("cub", tmp_path / "images", names, 24, tmp_path / "other.npz", 1)
    elif fault == "pixels changed":
        part.write_bytes(b"\0" * part.stat().st_size)
    elif fault == "pixels short":
        part.write_bytes(part.read_bytes()[:-1])
    elif fault == "no journal":
        journal.unlink()
    else:
        journal.write_text(json.dumps({"a": 1}) + "\n" + "{}\n")
    assert pack("cub", tmp_path / "images", names, 24, tmp_path / "store.npz", 1) == whole


@pytest.mark.slow
def test_a_killed_call_leaves_no_process_behind(tmp_path: Path) -> None:
    write(tmp_path / "images", 6 * CHUNK, side=80)
    process = packing(tmp_path / "images", tmp_path / "store.npz", 2)
    while lines(tmp_path / ".store.journal") < 2 and process.poll() is None:
        time.sleep(0.01)
    process.kill()  # only this process, not its workers
    process.communicate(timeout=30)  # its output ends when the last writing process ends


def test_packing_of_several_sizes_is_resumed_if_the_first_image_is_square(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 2 * CHUNK, side=10)
    first, last = tmp_path / "images" / names[1], tmp_path / "images" / names[-1]
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(UserError, match="is missing"):
        pack("cub", tmp_path / "images", names, 16, tmp_path / "store.npz", 1)
    last.write_bytes(content)
    first.unlink()  # in a finished chunk, so it is not read again
    digest = pack("cub", tmp_path / "images", names, 16, tmp_path / "store.npz", 1)
    assert pack("cub", tmp_path / "images", names, 16, tmp_path / "store.npz", 1) == digest  # nor for a finished store


@pytest.mark.slow
def test_concurrent_packing_of_one_store_is_serialized(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 3 * CHUNK)
    whole = pack("cub", tmp_path / "images", names, 24, tmp_path / "whole.npz", 1)
    both = [packing(tmp_path / "images", tmp_path / "store.npz", 1) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].decode().split()[-1] for process in both] == [whole, whole]
    assert pixels_file(tmp_path / "store.npz").read_bytes() == pixels_file(tmp_path / "whole.npz").read_bytes()


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_keeps_the_part(tmp_path: Path) -> None:
    names = write(tmp_path / "images", 2 * CHUNK)
    code = (
        "import resource, signal\nfrom pathlib import Path\nfrom ctxgcd.utils.reporting import reported\n"
        "from ctxgcd.images.pack import pack\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, 800_000))\n"
        f"folder = Path({str(tmp_path / 'images')!r})\n"
        f"with reported():\n    pack('cub', folder, {names!r}, 24, Path({str(tmp_path / 'store.npz')!r}), 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert lines(tmp_path / ".store.journal") == 2
    whole = pack("cub", tmp_path / "images", names, 24, tmp_path / "whole.npz", 1)
    assert pack("cub", tmp_path / "images", names, 24, tmp_path / "store.npz", 1) == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_the_digest_is_that_of_the_shapes_and_pixels_of_each_chunk(tmp_path: Path, workers: int) -> None:
    names = write(tmp_path / "images", CHUNK + 2, side=5)
    found = pack("cub", tmp_path / "images", names, 5, tmp_path / "store.npz", workers)
    arrays = [np.asarray(Image.open(tmp_path / "images" / name)) for name in names]  # of 5 x 5 to 5 x 7 pixels
    chunks = ""
    for chunk in (arrays[:CHUNK], arrays[CHUNK:]):
        shapes = json.dumps([[array.shape[0], array.shape[1]] for array in chunk]).encode()
        chunks += hashlib.sha256(shapes + b"".join(array.tobytes() for array in chunk)).hexdigest()
    assert found == hashlib.sha256(chunks.encode()).hexdigest()
    assert pixels_file(tmp_path / "store.npz").read_bytes() == b"".join(array.tobytes() for array in arrays)
