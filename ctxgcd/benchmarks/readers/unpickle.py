"""Safe reading of the official CIFAR pickles, without running code from a manipulated file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ctxgcd.errors import UserError


def _latin1(text: str, encoding: str) -> bytes:
    """Replacement for `_codecs.encode`, which old pickle protocols use for bytes of Python 3."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it uses the codec {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's reconstruct function, whose module depends on the version
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    """Accepts numpy arrays and plain types; refuses every other name in the file."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it uses {module}.{name}") from None


def load_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of numpy arrays and plain types. Raises UserError for any other file."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise almost any error
        raise UserError(
            f"{path} is not the official file ({error}); no code in it was run; download it again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} contains a {type(content).__name__}, but expected a dictionary; download it again")
    return content
