"""Workflow from images to the paper's tables.

Targets: all_tables (default), demo, benchmark_NAME, available_tables, check_data, plan, why, together, status, report
and fetch_NAME."""

from pathlib import Path

from ctxgcd.config import check_file
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.files import require_writable_folders

with reported(job=False):
    require_writable_folders(*map(Path, (".snakemake", "results", "work")))
    check_file(Path("params.yaml"))


configfile: "params.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/fetch.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/report.smk"


rule all_tables:
    default_target: True
    input:
        [paths.table_files(table) for table in tables.all_tables(PARAMS)],
        paths.table_files("audit_published"),
    message:
        "All tables of the paper are in results/"


rule demo:
    input:
        FILES[targets.DEMO],
    message:
        "The demo's tables and figures are in results/"


for name in PARAMS.benchmarks:

    rule:
        name:
            f"benchmark_{name}"
        input:
            FILES[name],
        message:
            "All results of this benchmark are in results/"


include: "workflow/rules/before_jobs.smk"
