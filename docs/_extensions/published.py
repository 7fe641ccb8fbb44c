"""The cost and the published numbers of each table of the paper, and published numbers of newer methods.

They are read from params.yaml and from published.csv and published_newer.csv in ctxgcd/tables/. Files are written to
docs/_published/: two for each table of the paper, included in docs/reproduce.md, and one included in docs/field.md.
"""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from ctxgcd.config import Params, read
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.tables import rows_in, table_benchmarks, table_runs
from ctxgcd.plan.lines import Line, plan
from ctxgcd.plan.rates import ASSUMED, Measured
from ctxgcd.tables.audit import audit
from ctxgcd.tables.display import benchmark_name, published_name
from ctxgcd.tables.field import BACKBONES, METHODS, load_field
from ctxgcd.tables.layout import NBSP
from ctxgcd.tables.published import QUANTITIES, load, paper_keys

HERE = Path(__file__).parents[1]

# The paper's tables 1 to 5, named as in the published numbers, and the tables here with the same rows.
TABLES = {
    "ssb": ["main_ssb"],
    "generic": ["main_generic"],
    "challenging": ["main_challenging"],
    "losses": ["ablation_cub", "ablation_imagenet_100"],
    "sensitivity": ["sensitivity_cub", "sensitivity_imagenet_100"],
}
SETS = {"ssb": "Fine-grained (SSB)", "generic": "Generic", "challenging": "Challenging"}
LINKS = {
    r"github\.com/(\S+) at (\w+)": r"[\g<0>](https://github.com/\1/tree/\2)",
    r"arXiv (\d{4}\.\d{5}(?:v\d+)?)": r"[\g<0>](https://arxiv.org/abs/\1)",
}


def cost(params: Params, tables: list[str]) -> str:
    """Return the commands that make the tables, and a table of trainings, k-means fits and device hours by benchmark.

    The numbers are those of `snakemake plan` in a fresh clone, without finished runs and measured rates.
    """
    runs = list(dict.fromkeys(run for table in tables for run in table_runs(params, table)))
    with TemporaryDirectory() as empty, chdir(empty):
        lines = plan(params, runs, Measured(runs=[], bench={}, given=None))
    targets = " ".join(f"results/{table}.csv" for table in tables)
    groups = {name: [line for line in lines if line.benchmark == name] for name in (line.benchmark for line in lines)}
    rows = [[benchmark_name(name), *_summed(own)] for name, own in groups.items()] + [["all", *_summed(lines)]]
    head = ["Benchmark", "Trainings", "k-means fits", f"Device hours at {ASSUMED:,.0f} views/s (assumed)"]
    return f"```bash\nsnakemake plan {targets}   # the cost\nsnakemake {targets}\n```\n\n{_table(head, rows)}"


def _summed(lines: list[Line]) -> list[Any]:
    """Return the numbers of trainings and k-means fits, and the device hours."""
    runs = [parse_row(line.row) for line in lines if line.seed is not None]
    trainings = sum(run.trains for run in runs)
    fits = len(runs) - trainings
    return [trainings, fits, f"{sum(line.hours for line in lines):,.1f}"]


def expected(params: Params, table: str, ours: list[str]) -> str:
    """Return the published numbers of one table of the paper, with the rows that are compared with them."""
    numbers = audit()
    numbers = numbers[numbers["table"] == table].assign(inconsistent=~numbers["consistent"])
    benchmarks = list(dict.fromkeys(numbers["benchmark"]))
    rows_here = {
        key: row
        for name in ours
        for benchmark in table_benchmarks(params, name)
        for row in rows_in(params, name, benchmark)
        for key in paper_keys(name, row)
    }
    cells = {(one["method"], one["benchmark"]): _numbers(one) for one in numbers.to_dict("records")}
    rows = [
        [published_name(key), f"`{rows_here[key]}`" if key in rows_here else "not run here"]
        + [cells.get((key, benchmark), "") for benchmark in benchmarks]
        for key in dict.fromkeys(numbers["method"])
    ]
    return _table(["Published row", "Row here", *map(benchmark_name, benchmarks)], rows)


def field() -> str:
    """Return the published numbers of newer methods in tables by backbone and set of benchmarks, with their sources.

    Numbers on the official test part have tables of their own.
    """
    rows, printed, text = load_field(), load(), ""
    for (on_test_part, backbone), of_backbone in rows.groupby(["on_test_part", "backbone"], sort=False):
        text += f"## {BACKBONES[backbone]}{', on the official test part' * on_test_part}\n\n"
        for table, title in SETS.items():
            benchmarks = printed.loc[printed["table"] == table, "benchmark"].unique()
            own = of_backbone[of_backbone["benchmark"].isin(benchmarks)]
            text += f"### {title}\n\n{_by_source(own)}\n" if len(own) else ""
    return text


def _by_source(rows: pd.DataFrame) -> str:
    """Return a table with a line for each method and source, and a column for each benchmark."""
    cells = {
        (one["method"], one["source"], one["benchmark"]): _numbers(one).replace(" ", NBSP)
        for one in rows.to_dict("records")
    }
    benchmarks = [name for name in load()["benchmark"].unique() if name in set(rows["benchmark"])]
    lines = [
        [METHODS[method], *(cells.get((method, source, name), "") for name in benchmarks), _linked(source)]
        for method, of in rows.groupby("method", sort=False)
        for source in of["source"].unique()
    ]
    return _table(["Method", *map(benchmark_name, benchmarks), "Source"], lines)


def _linked(source: str) -> str:
    for pattern, link in LINKS.items():
        source = re.sub(pattern, link, source)
    return source


def _numbers(one: dict[str, Any]) -> str:
    shown = ["–" if pd.isna(one[quantity]) else f"{one[quantity]:.1f}" for quantity in QUANTITIES]
    return " / ".join(shown) + "†" * one["inconsistent"]


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def write(*_: Any) -> None:
    """Write docs/_published/TABLE.cost.md, TABLE.md and field.md."""
    params, folder = read(HERE.parent / "params.yaml"), HERE / "_published"
    folder.mkdir(exist_ok=True)
    for table, ours in TABLES.items():
        for name, text in ((f"{table}.cost", cost(params, ours)), (table, expected(params, table, ours))):
            (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / "field.md").write_text(field(), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
