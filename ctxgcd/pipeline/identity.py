"""What names a run: hashes over its parameters, its split and its code, and the K that it reads from a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.pipeline.digest import digest_of
from ctxgcd.utils.files import read_object

ESTIMATED = "estimated"  # stands for K in the parameters of a run that reads it from a file


def identity(parameters: dict[str, Any], split_hash: str = "", code: str = "") -> str:
    """Sixteen hex digits over the resolved parameters (their row name aside), the split and the training code."""
    own = {key: value for key, value in parameters.items() if key != "row"}
    return content_hash([own, split_hash, code])


def content_hash(content: Any) -> str:
    """Sixteen hex digits over values that JSON can hold; the order of keys does not count."""
    return digest_of(json.dumps(content, sort_keys=True))


def short_hash(*texts: str) -> str:
    """Eight hex digits over some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def parameters_hash(parameters: dict[str, Any]) -> str:
    """Eight hex digits over a run's parameters as they are asked for: where K is estimated, without its number."""
    own = {key: value for key, value in parameters.items() if key != "K" or parameters.get("K_source") != ESTIMATED}
    return short_hash(json.dumps(own, sort_keys=True))


def read_estimate(path: Path) -> int:
    """The K that estimate_k wrote. Raises UserError for a file that holds none."""
    k = read_object(path, "K")["K"]
    if type(k) is not int or k < 2:
        raise UserError(f"{path} holds no estimate of K; delete it and run the same command again")
    return k
