"""Benchmarks of neighbours, clusters and scores, compared with plain loops as in research scripts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.bench.work import Work, nothing, timed
from ctxgcd.clustering.neighbours import nearest
from ctxgcd.clustering.semi_kmeans import semi_supervised_kmeans
from ctxgcd.evaluation.accuracy import assign, contingency

DIM, K = 768, 9
CLASSES, OLD = 100, 50
RESTARTS, ITERATIONS = 1, 10
SEARCHED = 300  # number of rows that the plain search processes


def _features(n: int, device: torch.device) -> Tensor:
    """Return n unit rows around CLASSES centres."""
    stream = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, DIM, generator=stream)
    rows = centres[torch.arange(n) % CLASSES] + torch.randn(n, DIM, generator=stream)
    return normalize(rows, dim=1).to(device)


def _labels(n: int, device: torch.device) -> Tensor:
    truth = torch.arange(n) % CLASSES
    return torch.where((truth < OLD) & (torch.arange(n) // CLASSES % 2 == 0), truth, -1).to(device)


def _nearest(folder: Path, n: int, device: torch.device) -> float:
    rows = _features(n, device)
    return timed(lambda: nearest(rows, K), device)


def _sorted_rows(folder: Path, n: int, device: torch.device) -> float:
    """Sort similarities one image at a time, only for SEARCHED images, because the cost per image is constant."""
    rows, searched = _features(n, device), min(n, SEARCHED)

    def loop() -> None:
        for i in range(searched):
            (rows @ rows[i]).argsort(descending=True)[1 : K + 1]

    return timed(loop, device) * n / searched


def _semi_kmeans(folder: Path, n: int, device: torch.device) -> float:
    rows, labels = _features(n, device), _labels(n, device)
    how = {"restarts": RESTARTS, "iterations": ITERATIONS, "seed": 0}
    return timed(lambda: semi_supervised_kmeans(rows, labels, CLASSES, **how), device)


def _plain_semi_kmeans(folder: Path, n: int, device: torch.device) -> float:
    """Compute all distances as differences, one centre at a time, as in the published code."""
    rows, labels = _features(n, device), _labels(n, device)

    def loop() -> None:
        for restart in range(RESTARTS):
            torch.manual_seed(restart)
            means = [rows[labels == c].mean(dim=0) for c in range(OLD)]
            centres = torch.stack([*means, *rows[torch.randperm(n)[: CLASSES - OLD]]])
            for _ in range(ITERATIONS):
                parts = [((part[:, None] - centres[None]) ** 2).sum(dim=2).argmin(dim=1) for part in rows.split(64)]
                assigned = torch.where(labels >= 0, labels, torch.cat(parts))
                new = centres.clone()
                for c in range(CLASSES):
                    if (assigned == c).any():
                        new[c] = rows[assigned == c].mean(dim=0)
                shift = float((new - centres).norm(dim=1).sum()) ** 2
                centres = new
                if shift < 1e-4:
                    break

    return timed(loop, device)


def _predictions(n: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.RandomState(0)
    return draw.randint(0, 1000, n), draw.randint(0, 1000, n)


def _matching(folder: Path, n: int, device: torch.device) -> float:
    predicted, true = _predictions(n)
    return timed(lambda: assign(contingency(predicted, true)), device)


def _counted_matching(folder: Path, n: int, device: torch.device) -> float:
    """Compute the same score by counting one image at a time."""
    predicted, true = _predictions(n)

    def loop() -> None:
        table = np.zeros((1000, 1000), dtype=np.int64)
        for i in range(n):
            table[predicted[i], true[i]] += 1
        assign(table)

    return timed(loop, device)


NEIGHBOURS, SEMI, MATCHING = (
    "9 nearest of all images, 768 values each",
    "semi-supervised k-means, 100 classes",
    "matching 1,000 clusters to 1,000 classes",
)
WORKS = (
    Work(NEIGHBOURS, "images/s", (2_000, 10_000, 50_000), nothing, _nearest, _sorted_rows, threads=2, least=100),
    Work(SEMI, "images/s", (1_000, 4_000, 16_000), nothing, _semi_kmeans, _plain_semi_kmeans, 1_000, 2, 1000),
    Work(MATCHING, "images/s", (10_000, 100_000, 1_000_000), nothing, _matching, _counted_matching),
)
