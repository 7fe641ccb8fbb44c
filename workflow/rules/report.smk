"""What a request would cost, before anything starts."""


rule plan:
    message:
        "Planning"
    log:
        "work/logs/plan.log",
    params:
        config=json.dumps(config),
    conda:
        "../envs/ctxgcd.yaml"
    localrule: True
    shell:
        "python workflow/scripts/print_plan.py --config {params.config:q} 2>&1 | tee {log:q}"
