"""The cost of requested targets (`plan`), the reasons for their runs (`why`), and reports on existing results."""


# The first page of `snakemake --report FILE.html TARGET`.
report: "../report/workflow.rst"


# The plan is printed at the end of the Snakefile, before Snakemake plans jobs, because a job cannot prevent the other
# requested targets from being made. The rule exists for `snakemake --list`.
rule plan:
    message:
        "Planned"


# See `plan`.
rule why:
    message:
        "Explained"


# See `plan`. The call continues with jobs of the rule `train_together` instead of its targets.
rule together:
    message:
        "Trained"


# No declared output: the rule runs whenever it is requested, and makes no other files.
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


# No declared output: the rule runs whenever it is requested, and lists missing results on the page.
rule report:
    log:
        "work/logs/report.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        config=PARAMS_FILE,
        stores=json.dumps(STORES),
        page=paths.REPORT,
    message:
        "Writing the report of the results that exist"
    shell:
        "python workflow/scripts/write_report.py --params {params.config} --stores {params.stores:q}"
        " --out {params.page} 2>&1 | tee {log:q}"
