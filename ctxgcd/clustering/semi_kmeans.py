"""Semi-supervised k-means of GCD (CVPR 2022): labelled images keep their class. Runs in batches on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.losses.full_precision import full_precision
from ctxgcd.utils.progress import Progress
from ctxgcd.utils.seeding import generator

TOLERANCE = 1e-4  # GCD's code: a run ends when (sum of the centres' shifts)^2 falls below it
CELLS = 2**25  # maximum number of distances in memory


@full_precision
def nearest_centre(features: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's nearest centre int64 [n] (ties: the lowest) and its squared distance float [n].

    features: float [n, d]; centres: float [K, d]. At most CELLS distances are in memory, for any n.
    """
    offset, half = (centres**2).sum(dim=1) / 2, []
    for rows in features.split(max(1, CELLS // len(centres))):
        half.append((offset - rows @ centres.T).min(dim=1))  # |x - c|^2 = |x|^2 + 2 * (|c|^2 / 2 - x.c)
    distance = (features**2).sum(dim=1) + 2 * torch.cat([part.values for part in half])
    return torch.cat([part.indices for part in half]), distance.clamp(min=0)


@torch.no_grad()
@full_precision
def semi_supervised_kmeans(
    features: Tensor, labels: Tensor, clusters: int, *, restarts: int, iterations: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return each row's cluster and the centres of the best of `restarts` runs.

    Cluster c is class c where a labelled row has class c; the other clusters are new. Old centres start at the means
    of their labelled rows, new ones by k-means++ on the unlabelled rows. Labelled rows stay in their class, centres
    are the means of their members and are not normalised again. An empty cluster takes the unlabelled row farthest
    from its centre. A run keeps its iteration of lowest inertia (the sum of squared distances to one's own centre).
    Results are the same on every call, and for all batch sizes for which the products round identically.

    Args:
        features: float [N, d], L2-normalised by the caller.
        labels: int64 [N], the class of a labelled row, -1 for an unlabelled row.

    Returns:
        int64 [N] in 0..clusters-1, and float [clusters, d].

    Raises:
        UserError: a feature is not finite, or `clusters` is too small for the labelled classes or too large for the
            unlabelled rows.
    """
    if not features.isfinite().all():
        raise UserError(
            "semi-supervised k-means: some features are not finite, because the training diverged; decrease lr"
        )
    free, pinned = labels < 0, labels >= 0
    old = labels[pinned].unique()
    fresh = clusters - len(old)
    if len(old) and int(old.max()) >= clusters:
        raise UserError(f"K is {clusters}, but the labelled images have {int(old.max()) + 1} classes; give a larger K")
    if fresh > int(free.sum()):
        raise UserError(
            f"K is {clusters}: {fresh} new classes for {int(free.sum())} unlabelled images; give a smaller K"
        )
    progress = Progress(f"semi-supervised k-means of {len(labels):,} images into {clusters}", restarts, "restarts")
    best: tuple[float, Tensor, Tensor] | None = None
    for restart in range(restarts):
        stream = generator(seed, "semi_kmeans", restart)
        found = lloyd(features, labels, _start(features, labels, old, clusters, stream), iterations)
        if best is None or found[0] < best[0]:
            best = found
        progress.add()
    assert best is not None
    return best[1], best[2]


def _start(features: Tensor, labels: Tensor, old: Tensor, clusters: int, stream: torch.Generator) -> Tensor:
    """Return initial centres: class means, then unlabelled rows sampled by squared distance to the previous centres."""
    centres = cluster_means(features, labels, clusters)[0]
    known = torch.zeros(clusters, dtype=torch.bool, device=features.device)
    known[old] = True
    rows = features[labels < 0]
    least = nearest_centre(rows, centres[known])[1] if len(old) else torch.ones(len(rows), device=rows.device)
    for cluster in (~known).nonzero()[:, 0]:
        weights = least.double().cpu()
        if not weights.sum() > 0:  # every row lies on a centre
            weights = torch.ones_like(weights)
        # Uses cumulative weights, because torch.multinomial accepts at most 2^24 weights.
        point = torch.rand(1, generator=stream, dtype=torch.float64) * weights.sum()
        drawn = int(torch.searchsorted(weights.cumsum(0), point, right=True).clamp(max=len(weights) - 1))
        centres[cluster] = rows[drawn]
        first = not known.any()
        known[cluster] = True
        apart = ((rows - rows[drawn]) ** 2).sum(dim=1)
        least = apart if first else torch.minimum(least, apart)
    return centres


def lloyd(features: Tensor, labels: Tensor, centres: Tensor, iterations: int) -> tuple[float, Tensor, Tensor]:
    """Run Lloyd's iterations from given centres; return the lowest inertia, its assignment and its clusters' means.

    features: float [N, d]; labels: int64 [N], -1 for unlabelled rows; centres: float [clusters, d].
    Returns the inertia, int64 [N] and float [clusters, d].
    """
    free = labels < 0
    rows = features[free]
    best: tuple[float, Tensor, Tensor] | None = None
    for _ in range(iterations):
        assigned = labels.clone()
        assigned[free], apart = nearest_centre(rows, centres)
        of_labelled = ((features[~free] - centres[labels[~free]]) ** 2).sum(dim=1)
        inertia = float(apart.double().sum() + of_labelled.double().sum())
        if best is None or inertia < best[0]:
            best = (inertia, assigned, centres)
        means, counts = cluster_means(features, assigned, len(centres))
        if len(empty := (counts == 0).nonzero()[:, 0]):
            means[empty] = rows[apart.sort(descending=True, stable=True).indices[: len(empty)]]
        shift = float((means - centres).norm(dim=1).double().sum()) ** 2
        centres = means
        if shift < TOLERANCE:
            break
    assert best is not None
    inertia, assigned, before = best
    means, counts = cluster_means(features, assigned, len(centres))
    return inertia, assigned, torch.where(counts[:, None] > 0, means, before)


def cluster_means(features: Tensor, assigned: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each cluster's rows [clusters, d] (0 without rows) and their number; rows at -1 are ignored.

    Computed as products with membership matrices instead of a scatter, which is deterministic on every device.
    """
    sums = torch.zeros(clusters, features.shape[1], dtype=features.dtype, device=features.device)
    counts = torch.zeros(clusters, dtype=torch.int64, device=features.device)
    every = torch.arange(clusters, device=features.device)[:, None]
    chunk = max(1, CELLS // clusters)
    for rows, ids in zip(features.split(chunk), assigned.split(chunk), strict=True):
        member = ids == every
        sums += member.to(features.dtype) @ rows
        counts += member.sum(dim=1)
    return sums / counts.clamp(min=1)[:, None], counts
