"""The plain words of the field, in one place: roles, sets, metrics."""

from __future__ import annotations

# Settings that the paper does not give: our choice, part of every run's identity.
NOT_IN_PAPER = ("neighbour_images", "reciprocal", "delta", "tau")

TERM_SIZES = ("loss", "gradient", "tail_gradient")  # by which a run compares its terms

PARTS = ("train", "test")
ROLES = ("labelled", "unlabelled", "test")

# Sets that a score is measured on: D^u (transductive) and the official test part (inductive).
SETS = ("unlabelled", "test")
METRICS = ("v2", "v2b", "v1", "nmi", "ari", "purity")

# Columns of what `ctxgcd predict` writes.
PREDICTED = ("path", "class", "name", "confidence", "nearest", "score", "none_of_these")


def counted(number: int, noun: str, kind: str = "") -> str:
    """A number with its noun, in the plural but for one: `1 class`, `2,000 new classes` (kind: `new`)."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return " ".join(filter(None, [f"{number:,}", kind, noun + ending]))


def number_text(value: float) -> str:
    """A number with all its digits, as the name of a row can hold it: 1, 0.3, 1e-07."""
    return str(int(value)) if value == int(value) else repr(value)
