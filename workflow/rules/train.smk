"""Training (one rule for all methods, of one run or of several) and scoring of the predictions."""


rule train:
    input:
        unpack(run_inputs),
        pixels=lambda w: ancient(run_pixels(w)),
        split_hash="results/splits/{benchmark}.sha256",
        split=ancient("results/splits/{benchmark}.csv"),
    output:
        run="results/runs/{benchmark}/{row}/seed{seed}/run.json",
        history="results/runs/{benchmark}/{row}/seed{seed}/history.csv",
        params="results/runs/{benchmark}/{row}/seed{seed}/params.yaml",
        final="results/runs/{benchmark}/{row}/seed{seed}/final.pt",
        assignments="results/runs/{benchmark}/{row}/seed{seed}/assignments.csv",
        embeddings="results/runs/{benchmark}/{row}/seed{seed}/embeddings.npz",
    log:
        "work/logs/train/{benchmark}/{row}/seed{seed}.log",
    benchmark:
        "work/benchmarks/train/{benchmark}/{row}/seed{seed}.tsv"
    conda:
        "../envs/ctxgcd.yaml"
    threads: lambda w: JOBS.run(**w)["threads"]
    resources:
        gpu=lambda w: JOBS.gpus(**w),
    params:
        parameters=lambda w: json.dumps(JOBS.run(**w)),
        code=lambda w: JOBS.code(w.benchmark, w.row),
        reader=lambda w, input: JOBS.reader(w.benchmark),
        files=lambda w, input, resources: jobs.job_words(
            input.items(), resources.get("runtime")
        ),
    message:
        "Training {wildcards.benchmark} {wildcards.row} seed {wildcards.seed}"
    shell:
        "python workflow/scripts/train_run.py --parameters {params.parameters:q} {params.files}"
        " --devices {resources.gpu} --code {params.code} --reader {params.reader} --out $(dirname {output.run:q})"
        " --work work/runs 2>&1 | tee {log:q}"


# Runs of one benchmark and seed, trained in one job (`snakemake together`). The job has no output: it keeps each run
# in the run cache, from which the job `train` of the run copies it. So nothing else depends on how a run was trained.
rule train_together:
    input:
        caches=lambda w: JOBS.caches(together.read(**w)),
        pixels=lambda w: pixels_of(together.read(**w)),
        split_hash="results/splits/{benchmark}.sha256",
        split="results/splits/{benchmark}.csv",
    log:
        "work/logs/train_together/{benchmark}/seed{seed}-{content}.log",
    conda:
        "../envs/ctxgcd.yaml"
    threads: lambda w: together.threads(PARAMS, together.read(**w))
    resources:
        gpu=1,
    params:
        # In a file, because a command line has a limit and is printed if the job fails.
        runs=lambda w, input: together.rows_file(
            JOBS.trained_together(together.read(**w), input.caches)
        ),
        reader=lambda w: JOBS.reader(w.benchmark),
        minutes=lambda w, resources: jobs.job_words([], resources.get("runtime")),
        number=lambda w: counted(len(together.read(**w)), "run"),
    message:
        "Training {params.number} of {wildcards.benchmark}, seed {wildcards.seed}, in one job"
    shell:
        "python workflow/scripts/train_together.py --runs {params.runs} --split {input.split:q}"
        " --split-hash {input.split_hash:q} {params.minutes} --devices {resources.gpu} --reader {params.reader}"
        " --work work/runs 2>&1 | tee {log:q}"


rule score:
    input:
        run="results/runs/{benchmark}/{row}/seed{seed}/run.json",
        assignments="results/runs/{benchmark}/{row}/seed{seed}/assignments.csv",
        split=ancient("results/splits/{benchmark}.csv"),
        split_hash="results/splits/{benchmark}.sha256",
    output:
        metrics="results/runs/{benchmark}/{row}/seed{seed}/metrics.json",
        predictions="results/runs/{benchmark}/{row}/seed{seed}/predictions.csv",
        test="results/runs/{benchmark}/{row}/seed{seed}/predictions_test.csv",
    log:
        "work/logs/score/{benchmark}/{row}/seed{seed}.log",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        code=code.script("score_run").hash,
    message:
        "Scoring {wildcards.benchmark} {wildcards.row} seed {wildcards.seed}"
    shell:
        "python workflow/scripts/score_run.py --run {input.run:q} --assignments {input.assignments:q}"
        " --split {input.split:q} --code {params.code} --metrics {output.metrics:q} --predictions {output.predictions:q}"
        " --test-predictions {output.test:q} 2>&1 | tee {log:q}"
