"""What a request would cost, before anything starts, and what there is already."""


# Printed at the end of the Snakefile, before Snakemake plans anything: a job could not keep the targets beside it from
# being made. The rule is there for `snakemake --list`.
rule plan:
    message:
        "Planned"


# Without a declared output: it tells what there is when it is asked, and asks for nothing to be made.
rule status:
    log:
        "work/logs/status.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        config=json.dumps(config),
    message:
        "Comparing the runs that exist with the published rows"
    shell:
        "python workflow/scripts/show_status.py --config {params.config:q} --stem results/status_published 2>&1 | tee {log:q}"
