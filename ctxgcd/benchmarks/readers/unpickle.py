"""Read the official CIFAR pickles without running anything that a tampered file asks for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ctxgcd.errors import UserError


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for `_codecs.encode`, which Python 3 writes for bytes in old pickle protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's rebuilding function, wherever this version keeps it
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    """Knows numpy arrays and plain types; every other name in the file is refused."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def load_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of numpy arrays and plain types; raises UserError for any other."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(
            f"{path} is not the official file ({error}), and nothing in it was run; download it again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, expected a dictionary; download it again")
    return content
