"""Columns of the predictions of `ctxgcd discover` and `ctxgcd predict`."""

from __future__ import annotations

from ctxgcd.names import PREDICTED as EARLIER  # of `ctxgcd predict` before classes had numbers

DISCOVERED = ("path", "class", "name", "number", "confidence", "nearest", "score")
PREDICTED = (*EARLIER[:3], "number", *EARLIER[3:])
