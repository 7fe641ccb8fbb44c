"""The identity of a run: hashes of its parameters, split and code, and an estimated K."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.pipeline.digest import digest_of
from ctxgcd.utils.files import read_object

ESTIMATED = "estimated"  # placeholder for K in the parameters of a run that reads K from a file


def identity(parameters: dict[str, Any], split_hash: str = "", code: str = "") -> str:
    """Return sixteen hex digits that identify resolved parameters (except the row name), split and training code."""
    own = {key: value for key, value in parameters.items() if key != "row"}
    return content_hash([own, split_hash, code])


def content_hash(content: Any) -> str:
    """Return sixteen hex digits that identify values of JSON types; the order of keys does not count."""
    return digest_of(json.dumps(content, sort_keys=True))


def short_hash(*texts: str) -> str:
    """Return a hash of eight hex digits of strings."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def parameters_hash(parameters: dict[str, Any]) -> str:
    """Return a hash of eight hex digits of a run's parameters, without the number of an estimated K."""
    own = {key: value for key, value in parameters.items() if key != "K" or parameters.get("K_source") != ESTIMATED}
    return short_hash(json.dumps(own, sort_keys=True))


def read_estimate(path: Path) -> int:
    """Return the K that estimate_k wrote. Raises UserError for a file without an estimate."""
    classes = read_object(path, "K")["K"]
    if type(classes) is not int or classes < 2:
        raise UserError(f"{path} contains no estimate of K; delete it and run the same command again")
    return classes
