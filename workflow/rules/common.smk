"""Validation of params.yaml, and what the other rules share."""

import json
import os
import shlex
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from snakemake.cli import get_argument_parser

from ctxgcd import available, runs, targets
from ctxgcd.benchmarks.places import use_places
from ctxgcd.benchmarks.check import problem_of
from ctxgcd.benchmarks.fetch import ARCHIVES
from ctxgcd.benchmarks.fingerprint import data_fingerprint
from ctxgcd.benchmarks.weights import is_address
from ctxgcd.catalogue import METHODS
from ctxgcd.config import Official
from ctxgcd.config import parse as parse_params
from ctxgcd.errors import UserError, reported
from ctxgcd.last_words import repeat_last_words
from ctxgcd.pipeline import code, equality
from ctxgcd.pipeline.identity import ESTIMATED, parameters_hash, short_hash
from ctxgcd.pipeline.why import why
from ctxgcd.plan.plan import write_plan
from ctxgcd.row_names import parse_row
from ctxgcd.stopping import sign, stop_jobs_too
from ctxgcd.targets import FORMATS, table_files

# The folders of the official benchmarks may also stand in a Snakemake profile or after --config, as data=ROOT or
# data="{root: ROOT, cub: FOLDER}"; the environment wins. Taken out: a place is no part of what a run is.
places = config.pop("data", {})

# The targets of this call, as Snakemake reads them: it tells them itself only after this file.
TARGETS = get_argument_parser().parse_known_args(sys.argv[1:])[0].targets

with reported(job=False):
    equality.check()
    PARAMS = parse_params(config)
    use_places(
        places,
        {b.folder for b in PARAMS.benchmarks.values() if isinstance(b, Official)},
    )
    REQUESTED = targets.requested_benchmarks(PARAMS, TARGETS)
    for warning in targets.check(PARAMS, TARGETS):
        print(f"warning: {warning}", file=sys.stderr)


wildcard_constraints:
    benchmark="|".join(PARAMS.benchmarks),
    backbone="|".join(PARAMS.backbones),
    row=r"[^/]+",
    seed=r"\d+",
    content="[0-9a-f]{8}",


def section(benchmark):
    """The part of params.yaml that says which images a benchmark has and how they are split, as JSON."""
    entry = PARAMS.benchmarks[benchmark]
    own = entry.model_dump(include={"reader", "folder", "images"})
    own |= runs.images_of(benchmark, entry)
    return json.dumps({"benchmark": benchmark, **own, **PARAMS.split.model_dump()})


def reader_of(wildcards):
    return PARAMS.benchmarks[wildcards.benchmark].reader


def class_list_of(wildcards):
    """The hash of the benchmark's class list: an edit of the list makes its split again."""
    return runs.class_list_hash(PARAMS.benchmarks[wildcards.benchmark])


def place(benchmark):
    """Where a user's own images lie, as JSON: no part of what a run is."""
    return json.dumps(
        PARAMS.benchmarks[benchmark].model_dump(include={"path", "listing", "labelled"})
    )


def data_of(wildcards):
    """What the split is made from: a change of the official list files, or of a user's own images, is one of these."""
    entry = PARAMS.benchmarks[wildcards.benchmark]
    return data_fingerprint(wildcards.benchmark, entry.model_dump())


def requested_section(benchmark):
    """All that the data check tells of a benchmark, as JSON."""
    protocol = runs.protocol_of(PARAMS, benchmark)
    backbone = PARAMS.backbones[protocol.backbone]
    return json.dumps(
        json.loads(section(benchmark))
        | json.loads(place(benchmark))
        | {"resize": protocol.resize, "backbone": protocol.backbone}
        | backbone.model_dump(include={"weights", "sha256"})
    )


# The rules call `python`: the one that runs snakemake, whether its environment is activated or not.
shell.prefix(
    f'set -euo pipefail; export PATH={shlex.quote(os.path.dirname(sys.executable))}:"$PATH"; '
)


# Where files travel to their jobs, a link will do if the storage can be seen from there: no job writes to its inputs.
inputflags:
    access.sequential,


# A job ends when this process is gone, and stops when this process is told to.
sign()


onstart:
    stop_jobs_too()


onerror:
    repeat_last_words(log)


# A check that finds its data missing names what all the requested benchmarks lack, not its own alone. In the
# environment rather than in `params`: asking for other targets is no reason to check again.
os.environ.update(
    CTXGCD_REQUESTED=json.dumps([requested_section(name) for name in REQUESTED])
)


def resolved(wildcards):
    """The run's parameters: what its job receives, and what makes it run again when they change."""
    return runs.resolve(PARAMS, wildcards.benchmark, wildcards.row, int(wildcards.seed))


def images_of(wildcards):
    """Which images a store holds and how large, as JSON; a new draw of the split leaves them alone, but for a trial."""
    entry = json.loads(section(wildcards.benchmark))
    drawn = {} if entry.get("trial") else {"seed", "labelled_share"}
    resize = runs.protocol_of(PARAMS, wildcards.benchmark).resize
    return json.dumps(
        {key: value for key, value in entry.items() if key not in drawn}
        | {"resize": resize}
    )


def features_of(wildcards):
    """How the benchmark's images are seen, and by which backbone, as JSON."""
    protocol = runs.protocol_of(PARAMS, wildcards.benchmark)
    backbone = PARAMS.backbones[protocol.backbone]
    seen = backbone.model_dump(include={"model", "mean", "std"})
    return json.dumps(
        {
            "crop": protocol.crop,
            "weights": runs.weights_of(backbone),
            **seen,
        }
    )


# A cache's name holds a hash of all that it depends on. So a change asks for a file that is not there, and the runs
# behind it are trained again, while a cache that was deleted and made again holds the same and trains nothing. For the
# same reason no input of a cache counts by its time: where one that is there had to be made again, Snakemake would look
# at none of the runs behind it, which read it as `ancient`, and miss what else of theirs has changed.


def weights_of(wildcards):
    """The prepared weights of the benchmark's backbone; a ViT's position embedding depends on the crop."""
    protocol = runs.protocol_of(PARAMS, wildcards.benchmark)
    backbone = PARAMS.backbones[protocol.backbone]
    content = short_hash(
        backbone.model, runs.weights_of(backbone), code.script(code.WEIGHTS).hash
    )
    return f"work/weights/{protocol.backbone}-{protocol.crop}-{content}.pt"


def images_hash(wildcards):
    """Which images, of which data: their split, which numbers them alike whatever it draws, is no part of it."""
    packed_by = code.pack(reader_of(wildcards)).hash
    return short_hash(images_of(wildcards), data_of(wildcards), packed_by)


def store_of(wildcards):
    return f"work/stores/{wildcards.benchmark}-{images_hash(wildcards)}.npz"


def pixels_of(wildcards):
    """The pixels beside a store's index: an input of its own only where files travel to their jobs one by one.

    On a shared disk they are there, and one input more would be a reason to run all that read the store again.
    """
    travels = workflow.storage_settings.default_storage_provider
    return store_of(wildcards).replace(".npz", ".pixels") if travels else []


def features_folder(wildcards):
    extracted_by = code.features().hash
    content = short_hash(images_hash(wildcards), features_of(wildcards), extracted_by)
    return f"work/features/{wildcards.benchmark}-{content}"


def frozen_features_of(wildcards):
    """The whole backbone's features of the benchmark's test views, in its protocol's precision."""
    precision = runs.protocol_of(PARAMS, wildcards.benchmark).precision
    return f"{features_folder(wildcards)}/test_view-tail0-{precision}.npy"


def kept_files(wildcards):
    """What a run reads beside its split, by name."""
    p = resolved(wildcards)
    tail, how = p.get("tail_blocks"), p["precision"]
    folder = features_folder(wildcards)
    if not METHODS[p["method"]].trains:
        files = {"test_view": f"{folder}/test_view-tail0-{how}.npy"}
    elif p["view_bank"]:
        files = {
            "weights": weights_of(wildcards),
            "test_view": f"{folder}/test_view-tail{tail}-{how}.npy",
            "view_bank": f"{folder}/view_bank-tail{tail}-views{p['view_bank']}-seed{p['view_bank_seed']}-{how}.npy",
        }
    else:
        files = {"weights": weights_of(wildcards), "store": store_of(wildcards)}
    kept = {name: ancient(file) for name, file in files.items()}
    if p["K"] == ESTIMATED:
        kept["estimate"] = f"results/estimates/{wildcards.benchmark}.json"
    return kept


def job_words(input, resources):
    """A training's files by name, and its time limit where one is set: a place and a limit are no part of a run."""
    words = {name: file for name, file in input.items() if name != "pixels"}
    if "runtime" in resources.keys():
        words["minutes"] = resources.runtime
    return " ".join(
        f"--{name.replace('_', '-')} {word}" for name, word in words.items()
    )


def weights_commands():
    """What fetches the weights of every backbone that has an address, as a shell command."""
    script = "python workflow/scripts/fetch_weights.py"
    commands = [
        f"{script} --weights {shlex.quote(backbone.weights)} --sha256 {backbone.sha256}"
        for backbone in PARAMS.backbones.values()
        if is_address(backbone.weights)
    ]
    return " && ".join(commands) or "echo no backbone has an address"


@lru_cache
def at_hand():
    """What the data at hand allows. It looks into every data folder: only for who asks for it."""
    return available.available(
        PARAMS, lambda benchmark: problem_of(json.loads(requested_section(benchmark)))
    )


def table_request(table, absent=()):
    """What a table holds, as JSON: its rows in order, its benchmarks, those that it lacks, its title and note."""
    benchmarks = targets.table_benchmarks(PARAMS, table)
    kind = table.partition("_")[0]
    rows = {row: None for b in benchmarks for row in targets.rows_in(PARAMS, table, b)}
    notes = {runs.backbone_of(PARAMS, b).note for b in benchmarks}
    return json.dumps(
        {
            "table": table,
            "kind": kind,
            "rows": list(rows),
            "benchmarks": benchmarks,
            "pairs": targets.table_pairs(PARAMS, kind, benchmarks[0]),
            "absent": list(absent),
            "note": " ".join(sorted(notes - {""})),
        }
    )


def asked(files):
    """The hash of the parameters of each run of these metrics.json, as they are asked for now."""
    of = [run for file in files for run in targets.runs_behind(PARAMS, file)]
    return " ".join(
        parameters_hash(runs.resolve(PARAMS, run.benchmark, run.row, run.seed))
        for run in of
    )


def runs_behind(target):
    """Every run that a target needs."""
    if available.asked_for([target]):
        return at_hand().runs_behind(target)
    return targets.runs_behind(PARAMS, target)


def benchmark_files(benchmark):
    return targets.benchmark_files(PARAMS, benchmark)


# The runs that the jobs of split, packing and features refuse where a benchmark has too few images for them, so that the
# training does not refuse them later. Not in `params`: asking for other targets is no reason to make these files again.
# A job on another machine does not know the targets of this call, so there the training refuses.
if workflow.is_main_process:
    with reported(job=False):
        asked_for = [
            run for target in TARGETS or ["all_tables"] for run in runs_behind(target)
        ]
        os.environ.update(CTXGCD_RUNS=runs.limits_of(PARAMS, asked_for))
