"""Where files lie below results/ and work/, and what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctxgcd.config import PAIRED

FOLDERS = ("results", "work")  # of everything that is made
FORMATS = ("csv", "md", "tex", "html")  # of every table
KINDS = ("main", "ablation", "sensitivity", "statistics", "terms", *PAIRED)  # of tables made from runs

RUNS = Path("results/runs")
RUN_CACHE = Path("work/runs")
DATA_CHECK = "results/data_check.txt"
STATUS = "results/status_published"  # without suffix
REPORT = "results/report.html"
PLAN = Path("work/plan.csv")
BENCH = Path("results/bench")
FINGERPRINTS = Path("work/fingerprints")
MERGED_PARAMS = Path("work/params")
EMBEDDINGS = Path("work/report")
AVAILABLE = "results/available"  # of tables with gaps: never the place of a whole one

TABLE_FILE = re.compile(rf"(?:.*/)?results/(?:available/)?((?:{'|'.join(KINDS)})_\w+)\.({'|'.join(FORMATS)})")
RUN_FILE = re.compile(r"(?:.*/)?results/runs/([^/]+)/([^/]+)/seed(\d+)/[^/]+")
BENCHMARK_FILE = re.compile(  # other than tables and runs
    r"(?:.*/)?results/(?:splits/|figures/[a-z]+_|duplicates_|metrics_|estimates/)(\w+)\.(?:csv|json|sha256|source\.json|png)"
)


def run_folder(benchmark: str, row: str, seed: int) -> str:
    return f"{RUNS}/{benchmark}/{row}/seed{seed}"


def run_folders(benchmark: str = "*") -> Iterable[Path]:
    """Every folder that has the place of a run, of one benchmark or of all."""
    return sorted(RUNS.glob(f"{benchmark}/*/seed*"))


def table_files(table: str) -> list[str]:
    """The files of one table."""
    return [f"results/{table}.{suffix}" for suffix in FORMATS]


def partial_table_files(table: str) -> list[str]:
    """The files of a table with gaps."""
    return [f"{AVAILABLE}/{table}.{suffix}" for suffix in FORMATS]


def summary_file(benchmark: str) -> str:
    """The file of a benchmark's means over seeds, one entry a row."""
    return f"results/metrics_{benchmark}.json"


def figure_file(figure: str, benchmark: str) -> str:
    return f"results/figures/{figure}_{benchmark}.png"


def duplicates_file(benchmark: str) -> str:
    return f"results/duplicates_{benchmark}.csv"


def split_file(benchmark: str, suffix: str = "csv") -> str:
    return f"results/splits/{benchmark}.{suffix}"


def split_files(benchmark: str) -> list[str]:
    """A split, its hash and the record of its data."""
    return [split_file(benchmark, suffix) for suffix in ("csv", "sha256", "source.json")]


def estimate_file(benchmark: str, suffix: str = "json") -> str:
    """Where a benchmark's estimated K stands."""
    return f"results/estimates/{benchmark}.{suffix}"


def estimate_files(benchmark: str) -> list[str]:
    return [estimate_file(benchmark, suffix) for suffix in ("json", "csv")]


def weights_file(backbone: str, crop: int, content: str) -> str:
    """Prepared weights; a ViT's position embedding depends on the crop."""
    return f"work/weights/{backbone}-{crop}-{content}.pt"


def store_file(benchmark: str, content: str) -> str:
    """The index of an image store; its pixels lie beside it."""
    return f"work/stores/{benchmark}-{content}.npz"


def features_folder(benchmark: str, content: str) -> str:
    return f"work/features/{benchmark}-{content}"


@dataclass(frozen=True)
class Features:
    """What a file of kept features holds, as its name says it.

    Attributes:
        tail: number of blocks after the features; 0: the whole backbone's features, which an adapter reads too.
        precision: float32 or bf16.
        views: kept train views of each image; 0: the test view.
        seed: of the kept views.
    """

    tail: int
    precision: str
    views: int = 0
    seed: int = 0

    PATTERN = r"(?:test_view-tail(\d+)|view_bank-tail(\d+)-views(\d+)-seed(\d+))-(float32|bf16)"

    @property
    def name(self) -> str:
        """The file's name without suffix."""
        if not self.views:
            return f"test_view-tail{self.tail}-{self.precision}"
        return f"view_bank-tail{self.tail}-views{self.views}-seed{self.seed}-{self.precision}"

    @classmethod
    def of(cls, name: str) -> Features:
        """Read a name back. Raises ValueError for another one."""
        if not (match := re.fullmatch(cls.PATTERN, name)):
            raise ValueError(f"{name!r} names no kept features")
        of_test, of_bank, views, seed, precision = match.groups()
        return cls(int(of_test or of_bank), precision, int(views or 0), int(seed or 0))
