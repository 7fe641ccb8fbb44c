"""Shared names: roles, sets, metrics and columns."""

from __future__ import annotations

# Settings that the paper does not give. Their values are chosen here and are part of every run's identity.
NOT_IN_PAPER = ("neighbour_images", "reciprocal", "delta", "tau")

TERM_SIZES = ("loss", "gradient", "tail_gradient")  # measures by which the loss terms of a run are compared

PARTS = ("train", "test")
ROLES = ("labelled", "unlabelled", "test")

# Sets on which scores are measured: D^u (transductive) and the official test part (inductive).
SETS = ("unlabelled", "test")
METRICS = ("v2", "v2b", "v1", "nmi", "ari", "purity")

# Columns of the predictions of `ctxgcd predict`.
PREDICTED = ("path", "class", "name", "confidence", "nearest", "score", "similarity", "none_of_these")


def counted(number: int, noun: str, kind: str = "") -> str:
    """Return a number with its noun, in the singular or plural: `1 class`, `2,000 new classes` (kind: `new`)."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return " ".join(filter(None, [f"{number:,}", kind, noun + ending]))


def number_text(value: float) -> str:
    """Return a number with full precision, as in the names of rows: 1, 0.3, 1e-07."""
    return str(int(value)) if value == int(value) else repr(value)
