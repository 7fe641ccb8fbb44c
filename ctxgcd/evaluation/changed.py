"""The share of images whose class differs between two predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from ctxgcd.errors import UserError
from ctxgcd.evaluation.accuracy import as_ids


def percent_changed(first: ArrayLike, second: ArrayLike, old: int) -> float:
    """Return the percent of images whose class differs between two predictions, in 0..100.

    The ids 0..old-1 are the Old classes and are compared as they are. The numbers of New clusters are arbitrary, so the
    New clusters of both predictions are matched first, by the one-to-one assignment with the most images in common. An
    image with an Old class in one prediction and a New cluster in the other has changed.

    Args:
        first: int [n], an id for each image, not negative.
        second: int [n], ids of the same images in the same order; the number of clusters may differ.
        old: number of Old classes, at least 0.

    Raises:
        UserError: the predictions are empty, unequally long, negative or not integers, or `old` is negative.
    """
    p, q = as_ids(first, "first predictions"), as_ids(second, "second predictions")
    if len(p) != len(q):
        raise UserError(f"there are {len(p)} and {len(q)} predictions, but expected one of each per image")
    if old < 0:
        raise UserError(f"old: found {old}, but expected the number of Old classes; give 0 or more")
    new = (p >= old) & (q >= old)
    equal = int((p == q)[~new].sum())
    if new.any():
        (clusters, p_new), (others, q_new) = (np.unique(ids[new], return_inverse=True) for ids in (p, q))
        w = np.bincount(p_new * len(others) + q_new, minlength=len(clusters) * len(others))
        w = w.reshape(len(clusters), len(others))
        equal += int(w[linear_sum_assignment(w, maximize=True)].sum())
    return 100 * (len(p) - equal) / len(p)
