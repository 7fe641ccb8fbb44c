"""From the official files to cached features: check, manifest, split, weights, image store, features."""


# No declared output, so the rule runs whenever it is requested. DVC tracks the file that it writes.
rule check_data:
    log:
        "work/logs/check_data.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        done=paths.DATA_CHECK,
    message:
        "Checking the data of " + ", ".join(REQUESTED)
    shell:
        "python workflow/scripts/check_data.py --done {params.done} 2>&1 | tee {log:q}"


# The job checks the benchmark's data first. It has the highest priority, so that no benchmark is trained while the data
# of another one is missing. The check is not a separate rule with `ancient` outputs: when such a job runs again,
# Snakemake does not check the jobs that depend on it and misses their changes.
rule manifest:
    output:
        "work/manifests/{benchmark}.csv",
    log:
        "work/logs/manifest/{benchmark}.log",
    priority: 100
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        section=lambda w: json.dumps(JOBS.section(w.benchmark)),
        data=lambda w: JOBS.data(w.benchmark),
        code=lambda w: code.manifest(JOBS.reader(w.benchmark)).hash,
        # Snakemake does not record parameters that use `input`: moving the images does not make the list again.
        place=lambda w, input: json.dumps(JOBS.place(w.benchmark)),
    message:
        "Checking the data of {wildcards.benchmark} and listing its images"
    shell:
        "{{ python workflow/scripts/check_data.py --benchmark {params.section:q} {params.place:q}"
        " && python workflow/scripts/list_images.py --benchmark {params.section:q} --place {params.place:q}"
        " --out {output:q}; }} 2>&1 | tee {log:q}"


rule split:
    input:
        "work/manifests/{benchmark}.csv",
    output:
        csv="results/splits/{benchmark}.csv",
        sha256="results/splits/{benchmark}.sha256",
        source="results/splits/{benchmark}.source.json",
    log:
        "work/logs/split/{benchmark}.log",
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    params:
        section=lambda w: json.dumps(JOBS.section(w.benchmark)),
        data=lambda w: JOBS.data(w.benchmark),
        class_list=lambda w: JOBS.class_list(w.benchmark),
        code=lambda w: code.split(JOBS.reader(w.benchmark)).hash,
        place=lambda w, input: json.dumps(JOBS.place(w.benchmark)),
    message:
        "Splitting {wildcards.benchmark} into labelled, unlabelled and test images"
    shell:
        "python workflow/scripts/split_images.py --benchmark {params.section:q} --place {params.place:q}"
        " --data {params.data:q} --manifest {input:q} --out {output.csv:q} --hash {output.sha256:q}"
        " --source {output.source:q} 2>&1 | tee {log:q}"


rule weights:
    output:
        "work/weights/{backbone}-{crop}-{content}.pt",
    log:
        "work/logs/weights/{backbone}-{crop}-{content}.log",
    priority: 90
    conda:
        "../envs/ctxgcd.yaml"
    params:
        model=lambda w: PARAMS.backbones[w.backbone].model,
        # Snakemake does not record parameters that use `input`: moving the file changes nothing.
        file=lambda w, input: PARAMS.backbones[w.backbone].weights,
        sha256=lambda w, input: PARAMS.backbones[w.backbone].sha256,
        code=lambda w, input: code.script(code.WEIGHTS).hash,
    message:
        "Preparing the weights of {wildcards.backbone}"
    shell:
        "python workflow/scripts/prepare_weights.py --model {params.model:q} --crop {wildcards.crop}"
        " --weights {params.file:q} --sha256={params.sha256} --code {params.code} --out {output:q} 2>&1 | tee {log:q}"


rule image_store:
    input:
        ancient("results/splits/{benchmark}.csv"),
    output:
        index="work/stores/{benchmark}-{content}.npz",
        pixels="work/stores/{benchmark}-{content}.pixels",
    log:
        "work/logs/store/{benchmark}-{content}.log",
    benchmark:
        "work/benchmarks/store/{benchmark}-{content}.tsv"
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    threads: 4
    params:
        images=lambda w: json.dumps(JOBS.images(w.benchmark)),
        place=lambda w, input: json.dumps(JOBS.place(w.benchmark)),
        code=lambda w, input: code.pack(JOBS.reader(w.benchmark)).hash,
    message:
        "Packing the images of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/pack_images.py --images {params.images:q} --place {params.place:q} --split {input:q}"
        " --workers {threads} --code {params.code} --out {output.index:q} 2>&1 | tee {log:q}"


rule duplicates:
    input:
        store=lambda w: ancient(JOBS.store(w.benchmark)),
        pixels=lambda w: ancient(pixels(JOBS.store(w.benchmark))),
        split=ancient("results/splits/{benchmark}.csv"),
        split_hash="results/splits/{benchmark}.sha256",
    output:
        "results/duplicates_{benchmark}.csv",
    log:
        "work/logs/duplicates/{benchmark}.log",
    priority: 40
    conda:
        "../envs/ctxgcd.yaml"
    params:
        code=code.script("find_duplicates").hash,
    message:
        "Searching {wildcards.benchmark} for duplicate images"
    shell:
        "python workflow/scripts/find_duplicates.py --store {input.store:q} --split {input.split:q} --out {output:q}"
        " 2>&1 | tee {log:q}"


rule features:
    input:
        store=lambda w: ancient(JOBS.store(w.benchmark)),
        pixels=lambda w: ancient(pixels(JOBS.store(w.benchmark))),
        weights=lambda w: ancient(
            JOBS.weights(w.benchmark, JOBS.backbone_of(w.benchmark, w.content))
        ),
        split=ancient("results/splits/{benchmark}.csv"),
        tail_input=lambda w: ancient(JOBS.tail_input(**w) or []),
    output:
        "work/features/{benchmark}-{content}/{kind}.npy",
    log:
        "work/logs/features/{benchmark}-{content}/{kind}.log",
    benchmark:
        "work/benchmarks/features/{benchmark}-{content}/{kind}.tsv"
    wildcard_constraints:
        kind=paths.Features.PATTERN,
    priority: 50
    conda:
        "../envs/ctxgcd.yaml"
    # Half, so that the test view and the view bank are made at the same time.
    threads: max(1, (workflow.cores or 1) // 2)
    resources:
        gpu=1,
    params:
        of=lambda w: json.dumps(
            JOBS.preprocessing(w.benchmark, JOBS.backbone_of(w.benchmark, w.content))
        ),
        code=lambda w, input: code.features().hash,
    message:
        "Extracting {wildcards.kind} of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/extract_features.py --kind {wildcards.kind} --parameters {params.of:q}"
        " --store {input.store:q} --weights {input.weights:q} --split {input.split:q} --threads {threads}"
        " --tail-input {input.tail_input:q} --code {params.code} --out {output:q} 2>&1 | tee {log:q}"


# The frozen features are `ancient`, because a hash in their name identifies their content.
rule estimate_k:
    input:
        features=lambda w: ancient(JOBS.frozen_features(w.benchmark)),
        split_hash="results/splits/{benchmark}.sha256",
        split=ancient("results/splits/{benchmark}.csv"),
    output:
        json="results/estimates/{benchmark}.json",
        csv="results/estimates/{benchmark}.csv",
    log:
        "work/logs/estimates/{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    threads: lambda w: protocol_of(PARAMS, w.benchmark).threads
    params:
        how=lambda w: " ".join(
            f"--{key} {value}"
            for key, value in estimate_of(PARAMS, w.benchmark).items()
        ),
        code=code.script("estimate_k").hash,
    message:
        "Estimating the number of classes of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/estimate_k.py --split {input.split:q} --features {input.features:q} {params.how}"
        " --code {params.code} --json {output.json:q} --csv {output.csv:q} 2>&1 | tee {log:q}"
