"""params.yaml as it is asked for, and what the other rules share."""

import json
import os
import shlex
import sys
from pathlib import Path

from snakemake.cli import get_argument_parser

from ctxgcd.benchmarks.fetching.archives import ARCHIVES
from ctxgcd.benchmarks.places import use_places
from ctxgcd.config import Official
from ctxgcd.config import parse as parse_params
from ctxgcd.errors import UserError
from ctxgcd.pipeline import available, code, equality, paths, tables, targets
from ctxgcd.pipeline.failed_jobs import repeat_last_words
from ctxgcd.pipeline.jobs import Jobs, job_words, write_params
from ctxgcd.pipeline.resolve import estimate_of, limits_of, protocol_of
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.why import why
from ctxgcd.plan.plan import write_plan
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.signals import sign, stop_jobs_too

# The folders of the official benchmarks may also stand in a Snakemake profile or after --config, as data=ROOT or
# data="{root: ROOT, cub: FOLDER}"; the environment wins. Taken out: a place is no part of what a run is.
places = config.pop("data", {})

# The targets of this call, as Snakemake reads them: it tells them itself only after this file.
TARGETS = get_argument_parser().parse_known_args(sys.argv[1:])[0].targets

with reported(job=False):
    equality.check()
    PARAMS = parse_params(config)
    JOBS = Jobs(PARAMS)
    official = [b for b in PARAMS.benchmarks.values() if isinstance(b, Official)]
    use_places(places, {b.folder for b in official})
    REQUESTED = targets.requested_benchmarks(PARAMS, TARGETS)
    for warning in targets.check(PARAMS, TARGETS):
        print(f"warning: {warning}", file=sys.stderr)

    # In the environment rather than in the rules' `params`, because asking for other targets is no reason to make a
    # file again: a check that finds its data missing names what all the requested benchmarks lack, not its own alone;
    # and the jobs of split, packing and features refuse a run that has too few images, so that its training does not
    # refuse it later. A job on another machine does not know the targets of this call, so there the training refuses.
    PARAMS_FILE = write_params(config)
    if workflow.is_main_process:
        needed = [r for t in TARGETS or ["all_tables"] for r in JOBS.runs_behind(t)]
        os.environ.update(
            CTXGCD_PARAMS=str(PARAMS_FILE),
            CTXGCD_REQUESTED=" ".join(REQUESTED),
            CTXGCD_RUNS=limits_of(PARAMS, needed),
        )


wildcard_constraints:
    benchmark="|".join(PARAMS.benchmarks),
    backbone="|".join(PARAMS.backbones),
    row=r"[^/]+",
    seed=r"\d+",
    content="[0-9a-f]{8}",


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


# The inputs of a job that are caches count by their names alone, never by their times: where one that is there had to be
# made again, Snakemake would look at none of the runs behind it, which read it as `ancient`, and miss their own changes.


def pixels(index):
    """The pixels beside a store's index: an input of its own only where files travel to their jobs one by one.

    On a shared disk they are there, and one input more would be a reason to run all that read the store again.
    """
    travels = workflow.storage_settings.default_storage_provider
    return index.replace(".npz", ".pixels") if travels else []


def metrics_of(runs):
    return [run.file("metrics.json") for run in runs]


def run_inputs(wildcards):
    """What a run reads beside its split; an estimate alone counts by its time, the caches by their names."""
    files = JOBS.inputs(**wildcards)
    return {k: file if k == "estimate" else ancient(file) for k, file in files.items()}


def run_pixels(wildcards):
    store = JOBS.inputs(**wildcards).get("store")
    return pixels(store) if store else []
