"""Downloads of public data and weights. The rules declare no outputs, so a download runs only if it is requested."""

for name in ARCHIVES:

    rule:
        name:
            f"fetch_{name}"
        log:
            f"work/logs/fetch/{name}.log",
        localrule: True
        conda:
            "../envs/ctxgcd.yaml"
        params:
            name=name,
        message:
            f"Downloading {name}"
        shell:
            "python workflow/scripts/fetch_data.py --reader {params.name} --folder {params.name} 2>&1 | tee {log:q}"


rule fetch_weights:
    log:
        "work/logs/fetch/weights.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        commands=JOBS.weights_commands(),
    message:
        "Downloading the weights of the backbones"
    shell:
        "{{ {params.commands}; }} 2>&1 | tee {log:q}"
