"""What a request would cost, before anything starts."""


rule plan:
    log:
        "work/logs/plan.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        config=json.dumps(config),
    message:
        "Planning"
    shell:
        "python workflow/scripts/print_plan.py --config {params.config:q} 2>&1 | tee {log:q}"
