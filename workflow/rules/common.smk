"""The requested parameters and what the other rules share."""

import json
import os
import shlex
import sys
from pathlib import Path

from snakemake.cli import get_argument_parser

from ctxgcd.benchmarks.fetching.archives import ARCHIVES
from ctxgcd.benchmarks.places import use_places
from ctxgcd.config import Official, parse as parse_params
from ctxgcd.errors import UserError
from ctxgcd.names import counted
from ctxgcd.pipeline import available, code, equality, paths, tables, targets, together
from ctxgcd.pipeline import jobs, requested
from ctxgcd.pipeline.failed_jobs import repeat_errors
from ctxgcd.pipeline.resolve import estimate_of, protocol_of
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.why import why
from ctxgcd.plan.plan import write_plan
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.signals import pass_process_id, stop_jobs_on_signals

# The folders of the official benchmarks can also be set in a Snakemake profile or with --config, as data=ROOT or
# data="{root: ROOT, cub: FOLDER}"; environment variables take precedence. The key is removed from the config, because
# the location of the data is not part of a run's identity.
places = config.pop("data", {})

# The targets of this call. Snakemake exposes its own parsed targets only after this file is read. A call that trains the
# runs of `together` has jobs instead of targets.
targets_of = lambda words: get_argument_parser().parse_known_args(words)[0].targets
TARGETS = targets_of(sys.argv[1:]) or together.targets()

with reported(job=False):
    equality.check()
    PARAMS = parse_params(config)
    JOBS = jobs.Jobs(PARAMS)
    FILES = {name: targets.benchmark_files(PARAMS, name) for name in PARAMS.benchmarks}
    STORES = {name: JOBS.store(name) for name in PARAMS.benchmarks}
    official = [b for b in PARAMS.benchmarks.values() if isinstance(b, Official)]
    use_places(places, {b.folder for b in official})
    REQUESTED = targets.requested_benchmarks(PARAMS, TARGETS)
    for warning in targets.check(PARAMS, TARGETS):
        if "together" not in TARGETS:  # else the call for its jobs prints it
            print(f"warning: {warning}", file=sys.stderr)

    # These values depend on the targets, so they are passed in the environment and not in the rules' `params`, where
    # other targets would make files again. A data check that fails lists the missing data of all requested benchmarks.
    # The jobs that split, pack and extract features refuse a run with too few images before its training starts. A job
    # on another machine does not see these variables; there the training itself refuses the run.
    PARAMS_FILE = jobs.write_params(config)
    if workflow.is_main_process:
        needed = [r for t in TARGETS or ["all_tables"] for r in JOBS.runs_behind(t)]
        os.environ.update(
            CTXGCD_PARAMS=str(PARAMS_FILE),
            CTXGCD_REQUESTED=" ".join(REQUESTED),
            CTXGCD_RUNS=requested.limits_of(PARAMS, needed),
        )


wildcard_constraints:
    benchmark="|".join(PARAMS.benchmarks),
    backbone="|".join(PARAMS.backbones),
    row=r"[^/]+",
    seed=r"\d+",
    content="[0-9a-f]{8}",


# The rules call `python`. This is the interpreter that runs snakemake, even if its environment is not activated.
shell.prefix(
    f'set -euo pipefail; export PATH={shlex.quote(os.path.dirname(sys.executable))}:"$PATH"; '
)


# Jobs only read their inputs, so a storage plugin can link files instead of copying them.
inputflags:
    access.sequential,


# Jobs end when this process has ended, and stop when this process is stopped.
pass_process_id()


onstart:
    stop_jobs_on_signals()


onerror:
    repeat_errors(log)


# Cached inputs are `ancient`: their names identify their contents and their times are ignored. If a cache that exists
# were made again, Snakemake would not check the runs that read it as `ancient`, and would miss changes of these runs.


def pixels(index):
    """The pixels of a store: a separate input only if a storage provider copies input files to the jobs.
    On a shared disk they are available anyway, and one more input would make all runs of the store again.
    """
    provider = workflow.storage_settings.default_storage_provider
    return index.replace(".npz", ".pixels") if provider else []


def run_inputs(wildcards):
    """The inputs of a run except its split: the time of an estimate counts, caches are identified by their names."""
    files = JOBS.inputs(**wildcards)
    return {k: file if k == "estimate" else ancient(file) for k, file in files.items()}


def run_pixels(wildcards):
    store = JOBS.inputs(**wildcards).get("store")
    return pixels(store) if store else []


def pixels_of(runs):
    """The pixels of the stores of several runs."""
    return sorted({files for run in runs if (files := run_pixels(vars(run)))})
