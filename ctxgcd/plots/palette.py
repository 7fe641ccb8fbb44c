"""Colours of classes, the same in figures and in the report."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence

# Krzywinski's 12 colours for colour blindness, for classes that fit in a legend.
CLASS_PALETTE = (
    *("#8400CD", "#009F81", "#FF6E3A", "#008DF9", "#A40122", "#FFC33B"),
    *("#FF5AAF", "#00C2F9", "#9F0162", "#00FCCF", "#E20134", "#FFB2FD"),
)


def in_places(
    true: Iterable[str], old: Iterable[bool], predicted: Iterable[str]
) -> tuple[list[str], list[str], list[str]]:
    """Sort class names: old classes, new classes, clusters without a class; each by name or number."""
    pairs = set(zip(true, old, strict=True))
    olds = sorted({name for name, is_old in pairs if is_old})
    news = sorted({name for name, _ in pairs} - set(olds))
    others = sorted(set(predicted) - {*olds, *news}, key=lambda s: (not s.isdigit(), len(s), s))
    return olds, news, others


def class_colors(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name; for many names, hues at steps of the golden angle, alternately dark and light."""
    if len(names) <= len(CLASS_PALETTE):
        return dict(zip(names, CLASS_PALETTE, strict=False))
    return {name: _on_the_wheel(place) for place, name in enumerate(names)}


def _on_the_wheel(place: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(place * 0.618034 % 1, 0.42 + 0.16 * (place % 2), 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
