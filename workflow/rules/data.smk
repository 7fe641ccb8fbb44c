"""From the official files to kept features: check, manifest, split, weights, image store, features."""


rule check_data:
    message:
        "Checking the data of " + ", ".join(REQUESTED)
    log:
        "work/logs/check_data.log",
    conda:
        "../envs/ctxgcd.yaml"
    localrule: True
    shell:
        "python workflow/scripts/check_data.py 2>&1 | tee {log:q}"


# Not an input of every rule: adding a benchmark would train all others again. Its priority puts it first,
# so that nothing is trained for one benchmark while another one's data is missing.
rule check_benchmark:
    message:
        "Checking the data of {wildcards.benchmark}"
    output:
        "work/checks/{benchmark}.ok",
    log:
        "work/logs/check/{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    priority: 100
    shell:
        "python workflow/scripts/check_data.py --need {wildcards.benchmark} --done {output:q} 2>&1 | tee {log:q}"


rule manifest:
    message:
        "Listing the images of {wildcards.benchmark}"
    input:
        checked=ancient("work/checks/{benchmark}.ok"),
    output:
        "work/manifests/{benchmark}.csv",
    params:
        section=lambda w: section(w.benchmark),
    log:
        "work/logs/manifest/{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    priority: 50
    shell:
        "python workflow/scripts/list_images.py --benchmark {params.section:q} --out {output:q} 2>&1 | tee {log:q}"


rule split:
    message:
        "Splitting {wildcards.benchmark} into labelled, unlabelled and test images"
    input:
        "work/manifests/{benchmark}.csv",
    output:
        csv="results/splits/{benchmark}.csv",
        sha256="results/splits/{benchmark}.sha256",
    params:
        section=lambda w: section(w.benchmark),
    log:
        "work/logs/split/{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    priority: 50
    shell:
        "python workflow/scripts/split_images.py --benchmark {params.section:q} --manifest {input:q}"
        " --out {output.csv:q} --hash {output.sha256:q} 2>&1 | tee {log:q}"


rule weights:
    message:
        "Preparing the weights of {wildcards.backbone}"
    output:
        "work/weights/{backbone}-{crop}.pt",
    params:
        model=lambda w: PARAMS.backbones[w.backbone].model,
        content=lambda w: runs.weights_fingerprint(PARAMS.backbones[w.backbone].weights),
    log:
        "work/logs/weights/{backbone}-{crop}.log",
    conda:
        "../envs/ctxgcd.yaml"
    priority: 90
    shell:
        "python workflow/scripts/prepare_weights.py --model {params.model:q} --crop {wildcards.crop}"
        " --weights {params.content:q} --out {output:q} 2>&1 | tee {log:q}"


rule image_store:
    message:
        "Packing the images of {wildcards.benchmark}"
    input:
        "results/splits/{benchmark}.csv",
    output:
        index="work/stores/{benchmark}.npz",
        pixels="work/stores/{benchmark}.pixels",
    params:
        section=lambda w: section(w.benchmark),
        resize=resize_of,
    log:
        "work/logs/store/{benchmark}.log",
    benchmark:
        "work/benchmarks/store/{benchmark}.tsv"
    conda:
        "../envs/ctxgcd.yaml"
    priority: 50
    threads: 4
    shell:
        "python workflow/scripts/pack_images.py --benchmark {params.section:q} --split {input:q}"
        " --resize {params.resize} --workers {threads} --out {output.index:q} 2>&1 | tee {log:q}"


rule features:
    message:
        "Extracting {wildcards.kind} of {wildcards.benchmark}"
    input:
        store="work/stores/{benchmark}.npz",
        pixels="work/stores/{benchmark}.pixels",
        weights=weights_of,
        split="results/splits/{benchmark}.csv",
    output:
        "work/features/{benchmark}/{kind}.npy",
    params:
        of=features_of,
    log:
        "work/logs/features/{benchmark}/{kind}.log",
    benchmark:
        "work/benchmarks/features/{benchmark}/{kind}.tsv"
    conda:
        "../envs/ctxgcd.yaml"
    wildcard_constraints:
        kind=r"test_view-tail\d+|view_bank-tail\d+-views\d+-seed\d+",
    priority: 50
    threads: workflow.cores
    resources:
        gpu=1,
    shell:
        "python workflow/scripts/extract_features.py --kind {wildcards.kind} --parameters {params.of:q}"
        " --store {input.store:q} --weights {input.weights:q} --split {input.split:q} --threads {threads}"
        " --out {output:q} 2>&1 | tee {log:q}"
