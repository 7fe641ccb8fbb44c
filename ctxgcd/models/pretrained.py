"""What is known of a backbone without loading it: the sources of its weights, and the sizes of its images."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from ctxgcd.benchmarks.fetching.download import download, mirrored
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.errors import UserError
from ctxgcd.models.packages import missing
from ctxgcd.utils.files import file_sha256


def size_fault(model: str, side: int, most: int) -> str:
    """Return why a timm model cannot read square images of `side` pixels, with the nearest possible sides, or "".

    A ViT divides its images into whole patches, whose size is part of its name; pixels after them would be ignored.

    most: the largest possible side.
    """
    patch = int(found[1]) if (found := re.search(r"_patch(\d+)", model)) else 1
    if side % patch == 0:
        return ""
    below = side // patch * patch
    sides = [str(near) for near in (below, below + patch) if 0 < near <= most] or [f"at least {patch}"]
    return f"{model} divides images into patches of {patch} x {patch} pixels; give {' or '.join(sides)}"


def has_learned_tokens(model: str) -> bool:
    """Return whether a timm model is, by its name, a ViT with tokens and learned positions.

    DINOv3's have rotary positions. The model itself is examined when it is cut.
    """
    return model.startswith(("vit_", "deit")) and not re.search("dinov3|rope", model)


def is_address(weights: str) -> bool:
    return weights.startswith(("http://", "https://"))


def weights_file(weights: str) -> Path:
    """Return the file of weights given by a URL (in weights/ below the data folder) or a path."""
    if is_address(weights):
        return folder_of("weights") / weights.rpartition("/")[2]
    return Path(os.path.expanduser(os.path.expandvars(weights)))


def weights_fingerprint(weights: str, sha256: str) -> str:
    """Return the fingerprint of weights in a run's identity: `hub` or `package`, or the hash of the file."""
    if weights == "hub" or (weights == "package" and not sha256):
        return weights
    if sha256:  # URLs always have one; a file with another hash is refused
        return f"sha256:{sha256}"
    path = weights_file(weights)
    if not path.is_file():
        return f"absent:{path.name}"
    found = path.stat()
    return f"sha256:{_file_hash(path, found.st_mtime_ns, found.st_size)}"


def weights_state(model: str, weights: str, sha256: str) -> tuple[bool, str]:
    """Return whether weights of a timm model are available or downloaded automatically, and a description."""
    if weights == "package":
        absent = missing(model)
        return not absent, absent or "in an installed package"
    if weights == "hub":
        return True, "from timm's hub, fetched once when a job needs them (a network, or timm's own cache)"
    path = weights_file(weights)
    if path.is_dir():
        return False, _is_a_folder(path)
    if is_address(weights):
        there = (
            "found, verified when read"
            if path.is_file()
            else f"downloaded once from {weights} (`snakemake fetch_weights`)"
        )
        return True, f"{there}: {path}"
    if not path.is_file():
        return False, f"{path} does not exist; give the path of an existing .pth, .pt or .safetensors file"
    if sha256 and weights_fingerprint(weights, "") != f"sha256:{sha256}":
        return False, f"{path} does not have the sha256 of params.yaml; replace the file or correct the sha256"
    return True, f"found: {path}"


def fetch_weights(weights: str, sha256: str, by_hand: str = "") -> Path:
    """Return the verified file of weights given by a URL or a path; download it if it is missing.

    by_hand: advice if the download fails; default: advice for users of the workflow.
    """
    file = weights_file(weights)
    if file.is_dir():
        raise UserError(f"weights file {_is_a_folder(file)}")
    if is_address(weights) and not file.is_file():
        advice = f"download it on another machine and put it at {file}, or set `weights` in params.yaml to its path"
        download(mirrored(weights), file, checksum=f"sha256:{sha256}", how_to_get=by_hand or advice)
    if sha256 and file.is_file() and weights_fingerprint(str(file), "") != f"sha256:{sha256}":
        raise UserError(
            f"weights file {file} does not have the expected sha256 {sha256}; delete it to download it again, or "
            f"{by_hand or 'correct the sha256 in params.yaml'}"
        )
    return file


def _is_a_folder(path: Path) -> str:
    return f"{path} is a folder; give a .pth, .pt or .safetensors file"


@lru_cache
def _file_hash(path: Path, _modified: int, _size: int) -> str:
    return file_sha256(path)
