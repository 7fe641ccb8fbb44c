"""Sentences of the report and the console on the number of classes and on the check on the labels."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

FEW = 3  # a class with fewer images is counted, and has no mean confidence
# In the report, below the result of the check.
EXPLANATION = (
    "In this check, the labels of half of your classes are hidden, as if these classes were new. Old: images of the "
    "other classes; New: images of the hidden classes; All: both. The numbers are the percent of images in the right "
    "class, where each group found counts as the class that it fits best. k-means groups images by their similarity "
    "alone; semi-supervised k-means also keeps images with the same label in one group."
)


def chance(accuracies: Collection[float], images: int) -> int:
    """Return the difference in points up to which accuracies (percent) on so many images may differ by chance.

    This is half of the 95% interval of a share, of the accuracy that is closest to 50%, and at least 1.
    """
    share = min(accuracies, key=lambda percent: abs(percent - 50)) / 100
    return max(1, math.ceil(196 * math.sqrt(share * (1 - share) / images)))


def on_estimate(facts: Mapping[str, Any]) -> list[str]:
    """Return how sure an estimated number of classes is; empty if it was given or corrected since.

    facts: as of api.discover.
    """
    if facts["K_source"] != "estimated" or facts["K"] not in (facts["tried"] or ()):
        return []
    number, labelled, tried = facts["K"], facts["labelled"] - facts.get("by_hand", 0), facts["tried"]
    reasons = []
    if others := sorted(tried.keys() - {number}):
        other = max(others, key=lambda classes: tried[classes])
        lead = tried[number] - tried[other]
        if lead <= chance((tried[number], tried[other]), labelled):
            fewer = round(lead * labelled / 100)
            how = f"only {fewer:,} fewer" if fewer else "as many"
            luck = ", which may be chance" if fewer else ""
            reasons.append(f"{other} classes group {how} of the {labelled:,} labelled images correctly{luck}")
    if few := facts["few"]:
        new = number - facts["known"]
        reasons.append(f"{few:,} of the {new:,} new classes {'has' if few == 1 else 'have'} fewer than {FEW} images")
    why = f": {', and '.join(reasons)}" if reasons else ""
    return [f"The number of classes, {number}, is a rough estimate{why}. Set it with --classes if you know it."]


def on_check(found: Mapping[str, Any], *, estimated: bool) -> list[str]:
    """Return the result of self_check.check in words; estimated: whether the K of the discovery is estimated.

    The first of its `scores` are those of the discovery's method, to which those of the clusterings are compared.
    """
    scores, images, classes = found["scores"], found["images"], found["classes"]
    own, *clusterings = scores
    limits = {
        kind: chance([of[kind] for of in scores.values()], count)
        for kind, count in (("all", images), ("new", found["hidden_images"]))
    }
    accuracies = ", ".join(
        f"{name} {'has All ' if name == own else ''}{of['all']:.1f} / {'Old ' if name == own else ''}{of['old']:.1f} / "
        f"{'New ' if name == own else ''}{of['new']:.1f}"
        for name, of in scores.items()
    )
    lines = [f"Check on your labels: with half of your classes hidden, {accuracies} (percent of {images:,} images)."]
    better = False
    for name in clusterings:
        apart = {kind: scores[name][kind] - scores[own][kind] for kind in limits}
        apart = {kind: points for kind, points in apart.items() if abs(points) > limits[kind]}
        better |= any(points > 0 for points in apart.values())
        words = [f"{kind.title()} {abs(by):.1f} points {'better' if by > 0 else 'worse'}" for kind, by in apart.items()]
        said = ", ".join(words) or "no difference that the check can detect"
        lines.append(f"On your labels, {name} compared with {own}: {said}.")
    if better:
        lines.append("Where a clustering is better, another --backbone or --size, or more labels, may help.")
    number = (
        ", but that of the result is an estimate, so the result may be worse"
        if estimated
        else "; its figures are not the accuracy of the result, which has other images and classes"
    )
    return [
        *lines,
        f"The check is rough: it has {images:,} images of {classes} classes, {found['hidden']} of them hidden; "
        f"differences up to about {limits['all']} points (All) or {limits['new']} (New) may be chance.",
        f"The check knows the true number of its classes, {classes}{number}.",
    ]
