"""From the official files to kept features: check, manifest, split, weights, image store, features."""


# Without a declared output, so that it runs whenever it is asked for; the file that it leaves is DVC's to keep.
rule check_data:
    log:
        "work/logs/check_data.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    message:
        "Checking the data of " + ", ".join(REQUESTED)
    shell:
        "python workflow/scripts/check_data.py --done results/data_check.txt 2>&1 | tee {log:q}"


# Not an input of every rule: adding a benchmark would train all others again. Its priority puts it first,
# so that nothing is trained for one benchmark while another one's data is missing.
rule check_benchmark:
    output:
        "work/checks/{benchmark}.ok",
    log:
        "work/logs/check/{benchmark}.log",
    priority: 100
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    message:
        "Checking the data of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/check_data.py --need {wildcards.benchmark} --done {output:q} 2>&1 | tee {log:q}"


rule manifest:
    input:
        checked=ancient("work/checks/{benchmark}.ok"),
    output:
        "work/manifests/{benchmark}.csv",
    log:
        "work/logs/manifest/{benchmark}.log",
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    params:
        section=lambda w: section(w.benchmark),
    message:
        "Listing the images of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/list_images.py --benchmark {params.section:q} --out {output:q} 2>&1 | tee {log:q}"


rule split:
    input:
        "work/manifests/{benchmark}.csv",
    output:
        csv="results/splits/{benchmark}.csv",
        sha256="results/splits/{benchmark}.sha256",
    log:
        "work/logs/split/{benchmark}.log",
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    params:
        section=lambda w: section(w.benchmark),
    message:
        "Splitting {wildcards.benchmark} into labelled, unlabelled and test images"
    shell:
        "python workflow/scripts/split_images.py --benchmark {params.section:q} --manifest {input:q}"
        " --out {output.csv:q} --hash {output.sha256:q} 2>&1 | tee {log:q}"


rule weights:
    output:
        "work/weights/{backbone}-{crop}.pt",
    log:
        "work/logs/weights/{backbone}-{crop}.log",
    priority: 90
    conda:
        "../envs/ctxgcd.yaml"
    params:
        model=lambda w: PARAMS.backbones[w.backbone].model,
        content=lambda w: runs.weights_fingerprint(PARAMS.backbones[w.backbone].weights),
        # Not recorded, because it takes `input`: the same file at another place changes nothing.
        file=lambda w, input: PARAMS.backbones[w.backbone].weights,
    message:
        "Preparing the weights of {wildcards.backbone}"
    shell:
        "python workflow/scripts/prepare_weights.py --model {params.model:q} --crop {wildcards.crop}"
        " --weights {params.file:q} --out {output:q} 2>&1 | tee {log:q}"


rule image_store:
    input:
        "results/splits/{benchmark}.csv",
    output:
        index="work/stores/{benchmark}.npz",
        pixels="work/stores/{benchmark}.pixels",
    log:
        "work/logs/store/{benchmark}.log",
    benchmark:
        "work/benchmarks/store/{benchmark}.tsv"
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    threads: 4
    params:
        section=lambda w: section(w.benchmark),
        resize=resize_of,
    message:
        "Packing the images of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/pack_images.py --benchmark {params.section:q} --split {input:q}"
        " --resize {params.resize} --workers {threads} --out {output.index:q} 2>&1 | tee {log:q}"


rule features:
    input:
        store="work/stores/{benchmark}.npz",
        pixels="work/stores/{benchmark}.pixels",
        weights=weights_of,
        split="results/splits/{benchmark}.csv",
    output:
        "work/features/{benchmark}/{kind}.npy",
    log:
        "work/logs/features/{benchmark}/{kind}.log",
    benchmark:
        "work/benchmarks/features/{benchmark}/{kind}.tsv"
    wildcard_constraints:
        kind=r"test_view-tail\d+|view_bank-tail\d+-views\d+-seed\d+",
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        of=features_of,
    message:
        "Extracting {wildcards.kind} of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/extract_features.py --kind {wildcards.kind} --parameters {params.of:q}"
        " --store {input.store:q} --weights {input.weights:q} --split {input.split:q} --threads {threads}"
        " --out {output:q} 2>&1 | tee {log:q}"
