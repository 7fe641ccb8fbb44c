"""The report of the existing results, with a list of missing results. Makes no results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctxgcd.config import Params
from ctxgcd.images.packed import open_packed, pixels_file
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import SHOWN, existing_metrics, planned_rows, requested_runs, shown_run
from ctxgcd.pipeline.targets import benchmark_files
from ctxgcd.report.grid import Cell, Grid, grid_of_listing
from ctxgcd.report.page import Block, Notes, Section, png, write_page
from ctxgcd.report.run_section import confusion_sections, embedding_block, gallery_blocks, read_made, warnings_of
from ctxgcd.report.tables import table_grids
from ctxgcd.tables.audit import audit, audit_listing
from ctxgcd.tables.display import benchmark_name, method_name
from ctxgcd.tables.published import PAPER_KEYS
from ctxgcd.tables.status import status, status_listing
from ctxgcd.utils.files import read_object, read_rows

HEADINGS = {"main": "Main table", "ablation": "Ablation", "sensitivity": "Sensitivity", "statistics": "Statistics"}
HEADINGS |= {"terms": "Loss terms", "unknowns": "Choices that the paper does not specify", "speed": "Faster settings"}
FIGURES = {
    "curves": "Loss terms over epochs. Line: mean over seeds; band: minimum to maximum.",
    "sensitivity": "Accuracy as a function of each parameter: mean over seeds, with one std if there are several.",
    "embedding": "t-SNE of the features of D^u, coloured by true class and by prediction.",
}

DEFINITIONS = [
    "D^l: the labelled images. D^u: the unlabelled images, whose classes are predicted.",
    "Old: the classes with images in D^l, or their images in D^u. New: the classes without images in D^l, or their "
    "images. All: all images of D^u.",
    "K: the number of classes, Old and New together, that a run uses. It is true, estimated or given.",
    "v2: the clustering accuracy reported in papers. Clusters are assigned to classes one to one such that the number "
    "of correct images is maximal over all images; Old and New use the same assignment.",
    "±: standard deviation over n runs with different training seeds.",
    "The CSV file of a table is results/NAME.csv, such as results/main_fashion.csv or, for the section Statistics, "
    "results/statistics_BENCHMARK.csv.",
]


def make_report(params: Params, stores: Mapping[str, str], out: Path) -> None:
    """Write the report of the results in results/ of the current folder.

    stores: benchmark -> index of its packed images, used for thumbnails; the file may be missing.
    Raises UserError for a result that cannot be read.
    """
    results = Path("results")
    runs = {b: _metrics(sorted(results.glob(f"runs/{b}/*/seed*/metrics.json"))) for b in params.benchmarks}
    found = {b: _benchmark(params, b, runs[b], Path(stores[b]), results) for b in params.benchmarks}
    absent = "; ".join(  # names may contain commas; trials are only used to choose values
        benchmark_name(b)
        for b, section in found.items()
        if section is None and not getattr(params.benchmarks[b], "trial", False)
    )
    tables = [table_grids(params, table, results) for table, of in params.tables.items() if len(of) > 1]
    over_several = [Section(grids[0].title, grids) for grids in tables if grids]
    every = [run for of in runs.values() for run in of]
    definitions = Section("Definitions", [Notes(DEFINITIONS)], folded=True)
    whole = [
        Section("Summary", sections=[definitions, Section("Available results", _summary(params, runs, absent))]),
        *([Section("Tables of several benchmarks", sections=over_several)] if over_several else []),
        *filter(None, found.values()),
        Section("Published numbers", sections=_published(params)),
    ]
    count = sum(1 for of in runs.values() if of)
    counted = f"{_counted(len(every), 'run')} on {_counted(count, 'benchmark')}"
    write_page("ctxgcd: results", f"Generalized Category Discovery with contextual losses. {counted}.", whole, out)
    gaps = f". No results for {absent}." if absent else ""
    print(f"{out} written: {counted}{gaps}")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(commit: str) -> str:
    """Return the first 12 digits of a commit, with its `-dirty`."""
    name, dash, rest = commit.partition("-")
    return name[:12] + dash + rest


def _metrics(files: Iterable[Path]) -> list[dict[str, Any]]:
    keys = ("row", "seed", "K", "clusters", "environment", "commit", "seconds")
    return [read_object(file, *keys) for file in files]


def _summary(params: Params, runs: Mapping[str, Sequence[dict[str, Any]]], absent: str) -> list[Block]:
    """Return a table of the runs of each benchmark, with device, commit and versions."""

    def values(of: Iterable[Any]) -> str:
        return ", ".join(sorted({str(value) for value in of}))

    lines = [
        [
            benchmark_name(benchmark),
            values(run["environment"].get("device", "unknown") for run in of),
            values(_short(run["commit"]) for run in of),
            f"{len(of):,}",
            f"{len({run['row'] for run in of}):,}",
            f"{len({run['seed'] for run in of}):,}",
            f"{sum(run['seconds'] for run in of) / 60:,.1f}",
        ]
        for benchmark, of in runs.items()
        if of
    ]
    every = [run for of in runs.values() for run in of]
    libraries = dict.fromkeys(name for run in every for name in run["environment"] if name != "device")
    versions = [f"{name} {values(run['environment'].get(name, '-') for run in every)}" for name in libraries]
    head = ["Benchmark", "Device", "Commit", "Runs", "Rows", "Seeds", "Minutes"]
    grid = Grid("Runs", head, [[Cell(text) for text in line] for line in lines], numbers_from=3)
    notes = [f"Versions: {', '.join(versions)}."] if versions else ["There are no finished runs."]
    notes += _not_in_tables(params, runs)
    notes += [f"No results for {absent}."] if absent else []
    return [*([grid] if lines else []), Notes(notes)]


def _not_in_tables(params: Params, runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """Return a note on runs that are in no table, such as those of an experiment."""
    seeds: dict[str, list[int]] = {}
    for benchmark, of in runs.items():
        in_tables = requested_runs(params, benchmark) if of else set()
        for run in of:
            if Run(benchmark, run["row"], run["seed"]) not in in_tables:
                seeds.setdefault(f"{benchmark_name(benchmark)}: {method_name(run['row'])}", []).append(run["seed"])
    rows = "; ".join(f"{row} (seed {', '.join(map(str, sorted(own)))})" for row, own in seeds.items())
    count, every = sum(map(len, seeds.values())), sum(map(len, runs.values()))
    return [f"{count:,} of the {every:,} runs are in no table of the current params.yaml: {rows}."] if rows else []


def _benchmark(
    params: Params, benchmark: str, runs: Sequence[dict[str, Any]], store: Path, results: Path
) -> Section | None:
    """Return the section of a benchmark, or None if it has no results."""
    own = [table for table, of in params.tables.items() if of == [benchmark]]
    tables = own + [f"{kind}_{benchmark}" for kind in HEADINGS if kind != "main"]
    grids = {table: table_grids(params, table, results) for table in tables}
    inner = [Section(HEADINGS[table.partition("_")[0]], of) for table, of in grids.items() if of]
    cells = [cell for grid in grids[f"sensitivity_{benchmark}"] for line in grid.lines for cell in line]
    hollow = " Hollow markers: published values." if any(cell.published for cell in cells) else ""
    captions = FIGURES | {"sensitivity": FIGURES["sensitivity"] + hollow}
    figures = {name: results / "figures" / f"{name}_{benchmark}.png" for name in FIGURES}
    drawn = [png(file, captions[name]) for name, file in figures.items() if file.is_file()]
    inner += [Section("Figures", drawn)] if drawn else []
    shown = shown_run(params, benchmark)
    packed = open_packed(store) if store.is_file() and pixels_file(store).is_file() else None
    made = read_made(Path(shown.folder), results / "splits" / f"{benchmark}.csv", packed)
    if made:
        own_metrics = [run for run in runs if (run["row"], run["seed"]) == (shown.row, shown.seed)]
        warnings = [line for run in own_metrics for line in warnings_of(run)]
        which = Notes([f"Run: {method_name(shown.row)}, seed {shown.seed}.", *warnings])
        parts = [
            Section("Embedding", [embedding_block(made)]),
            *confusion_sections(made),
            Section("Class gallery", gallery_blocks(made)),
        ]
        inner += [Section(one.title, [which, *one.blocks]) for one in parts]
    if not inner and not runs:
        return None
    return Section(benchmark_name(benchmark), _gaps(params, benchmark, made is None, results), inner)


def _gaps(params: Params, benchmark: str, without_run: bool, results: Path) -> list[Block]:
    """Return the number of duplicate images of a benchmark and its missing files."""
    duplicates = results / f"duplicates_{benchmark}.csv"
    notes = []
    if duplicates.is_file():
        kinds = read_rows(duplicates, usecols=["kind"])["kind"].value_counts()
        pairs = [f"{kinds.get(kind, 0):,} {kind}" for kind in ("equal", "near")]
        parts = "labelled, unlabelled and test images"
        notes.append(f"Pairs of duplicate images across {parts}: {' and '.join(pairs)}.")
    wanted = [Path(file) for file in benchmark_files(params, benchmark)]
    wanted = [file for file in wanted if file.suffix in (".csv", ".png")]
    runs = [Path(file) for file in benchmark_files(params, benchmark) if file.endswith("metrics.json")]
    if absent := dict.fromkeys(file.stem for file in wanted if not file.exists()):
        notes.append(f"Missing: {', '.join(absent)}; run `snakemake benchmark_{benchmark}` to create them.")
    if lacking := sum(not run.exists() for run in runs):
        notes.append(f"{lacking} of the {len(runs)} runs of the main rows are missing.")
    if without_run:
        notes.append(f"No confusion matrix, embedding and gallery: the first seed of {method_name(SHOWN)} is missing.")
    return [Notes(notes)] if notes else []


def _published(params: Params) -> list[Section]:
    """Return the audit of the paper's numbers and their state of reproduction."""
    planned = planned_rows(params)
    state = status_listing(status(planned, existing_metrics(params, planned), PAPER_KEYS.values()))
    return [
        Section("Audit: consistency of All, Old and New", [grid_of_listing(audit_listing(audit()))], folded=True),
        Section("State of reproduction", [grid_of_listing(state)], folded=True),
    ]
