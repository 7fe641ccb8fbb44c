"""What a request would cost, before anything starts, and what there is already."""


# The first page of `snakemake --report FILE.html TARGET`.
report: "../report/workflow.rst"


# Printed at the end of the Snakefile, before Snakemake plans anything: a job could not keep the targets beside it from
# being made. The rule is there for `snakemake --list`.
rule plan:
    message:
        "Planned"


# As `plan`.
rule why:
    message:
        "Explained"


# Without a declared output: it tells what there is when it is asked, and asks for nothing to be made.
rule status:
    log:
        "work/logs/status.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        config=PARAMS_FILE,
        stem=paths.STATUS,
    message:
        "Comparing the runs that exist with the published rows"
    shell:
        "python workflow/scripts/show_status.py --params {params.config} --stem {params.stem} 2>&1 | tee {log:q}"


# Without a declared output: a page of what there is when it is asked for, with the gaps named.
rule report:
    log:
        "work/logs/report.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        config=PARAMS_FILE,
        stores=json.dumps({name: JOBS.store(name) for name in PARAMS.benchmarks}),
        page=paths.REPORT,
    message:
        "Writing the report of the results that exist"
    shell:
        "python workflow/scripts/write_report.py --params {params.config} --stores {params.stores:q}"
        " --out {params.page} 2>&1 | tee {log:q}"
