"""Paths of files below results/ and work/, and the meaning of their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctxgcd.config import PAIRED

FOLDERS = ("results", "work")  # folders of all outputs
TABLE_FORMATS = ("csv", "md", "tex", "html")  # file formats of every table
TABLE_KINDS = ("main", "ablation", "sensitivity", "statistics", "terms", *PAIRED)  # kinds of tables made from runs

RUNS = Path("results/runs")
RUN_CACHE = Path("work/runs")
DATA_CHECK = "results/data_check.txt"
STATUS = "results/status_published"  # without suffix
REPORT = "results/report.html"
PLAN = Path("work/plan.csv")
BENCH = Path("results/bench")
FINGERPRINTS = Path("work/fingerprints")
MERGED_PARAMS = Path("work/params")
TOGETHER = Path("work/together")  # the runs of the jobs of `snakemake together`
EMBEDDINGS = Path("work/report")
AVAILABLE = "results/available"  # partial tables, never complete ones

TABLE_FILE = re.compile(
    rf"(?:.*/)?results/(?:available/)?((?:{'|'.join(TABLE_KINDS)})_\w+)\.({'|'.join(TABLE_FORMATS)})"
)
RUN_FILE = re.compile(r"(?:.*/)?results/runs/([^/]+)/([^/]+)/seed(\d+)/[^/]+")
BENCHMARK_FILE = re.compile(  # other than tables and runs
    r"(?:.*/)?results/(?:splits/|figures/[a-z]+_|duplicates_|metrics_|estimates/)(\w+)\.(?:csv|json|sha256|source\.json|png)"
)


def run_folder(benchmark: str, row: str, seed: int) -> str:
    return f"{RUNS}/{benchmark}/{row}/seed{seed}"


def run_folders(benchmark: str = "*") -> Iterable[Path]:
    """Return the folders of all runs of one benchmark, or of all benchmarks."""
    return sorted(RUNS.glob(f"{benchmark}/*/seed*"))


def table_files(table: str) -> list[str]:
    """Return the files of a table."""
    return [f"results/{table}.{suffix}" for suffix in TABLE_FORMATS]


def partial_table_files(table: str) -> list[str]:
    """Return the files of a partial table."""
    return [f"{AVAILABLE}/{table}.{suffix}" for suffix in TABLE_FORMATS]


def summary_file(benchmark: str) -> str:
    """Return the file with a benchmark's means over seeds, one entry per row."""
    return f"results/metrics_{benchmark}.json"


def figure_file(figure: str, benchmark: str) -> str:
    return f"results/figures/{figure}_{benchmark}.png"


def duplicates_file(benchmark: str) -> str:
    return f"results/duplicates_{benchmark}.csv"


def split_file(benchmark: str, suffix: str = "csv") -> str:
    return f"results/splits/{benchmark}.{suffix}"


def split_files(benchmark: str) -> list[str]:
    """Return the files of a split: the split, its hash and the record of its data."""
    return [split_file(benchmark, suffix) for suffix in ("csv", "sha256", "source.json")]


def estimate_file(benchmark: str, suffix: str = "json") -> str:
    """Return the file with a benchmark's estimated K."""
    return f"results/estimates/{benchmark}.{suffix}"


def estimate_files(benchmark: str) -> list[str]:
    return [estimate_file(benchmark, suffix) for suffix in ("json", "csv")]


def weights_file(backbone: str, crop: int, content: str) -> str:
    """Return the file of prepared weights, which depend on the crop through a ViT's position embedding."""
    return f"work/weights/{backbone}-{crop}-{content}.pt"


def store_file(benchmark: str, content: str) -> str:
    """Return the index file of an image store; its pixels are in the same folder."""
    return f"work/stores/{benchmark}-{content}.npz"


def features_folder(benchmark: str, content: str) -> str:
    return f"work/features/{benchmark}-{content}"


@dataclass(frozen=True)
class Features:
    """The content of a file of cached features, encoded in its name.

    Attributes:
        tail: number of blocks after the features; 0: the whole backbone's features, which an adapter reads too.
        precision: float32 or bf16.
        views: number of cached train views of each image; 0: the test view.
        seed: seed of the cached views.
    """

    tail: int
    precision: str
    views: int = 0
    seed: int = 0

    PATTERN = r"(?:test_view-tail(\d+)|view_bank-tail(\d+)-views(\d+)-seed(\d+))-(float32|bf16)"

    @property
    def name(self) -> str:
        """Return the file's name without suffix."""
        if not self.views:
            return f"test_view-tail{self.tail}-{self.precision}"
        return f"view_bank-tail{self.tail}-views{self.views}-seed{self.seed}-{self.precision}"

    @classmethod
    def of(cls, name: str) -> Features:
        """Parse a name. Raises ValueError for any other name."""
        if not (match := re.fullmatch(cls.PATTERN, name)):
            raise ValueError(f"{name!r} is not a name of cached features")
        of_test, of_bank, views, seed, precision = match.groups()
        return cls(int(of_test or of_bank), precision, int(views or 0), int(seed or 0))
