"""What is public without an account. No declared outputs: a fetch runs when it is asked for, and never by itself."""


def fetch_command(name):
    return f"python workflow/scripts/fetch_data.py --reader {name} --folder {name}"


def weights_commands():
    """One command for each backbone whose weights are an address."""
    return [
        f"python workflow/scripts/fetch_weights.py --weights {shlex.quote(backbone.weights)} --sha256 {backbone.sha256}"
        for backbone in PARAMS.backbones.values()
        if is_address(backbone.weights)
    ]


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
            command=fetch_command(name),
        message:
            f"Fetching {name}"
        shell:
            "{params.command} 2>&1 | tee {log:q}"


rule fetch_weights:
    log:
        "work/logs/fetch/weights.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        commands=" && ".join(weights_commands() or ["true"]),
    message:
        "Fetching the weights of the backbones"
    shell:
        "{{ {params.commands}; }} 2>&1 | tee {log:q}"
