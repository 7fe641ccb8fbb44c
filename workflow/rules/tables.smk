"""From scores to tables and figures."""


rule table:
    input:
        metrics=lambda w: jobs.metrics_of(
            tables.table_runs(PARAMS, f"{w.kind}_{w.name}")
        ),
        predictions=lambda w: jobs.predictions_of(
            tables.table_runs(PARAMS, f"{w.kind}_{w.name}")
        ),
    output:
        [
            f"results/{{kind}}_{{name}}.{suffix}"
            for suffix in paths.TABLE_FORMATS
            if suffix != "html"
        ],
        report(
            "results/{kind}_{name}.html",
            caption="../report/table.rst",
            category="Tables",
            subcategory="{kind}",
            labels={"table": "{kind}_{name}"},
        ),
    log:
        "work/logs/table/{kind}_{name}.log",
    wildcard_constraints:
        kind="|".join(paths.TABLE_KINDS),
        name=r"\w+",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        stem=lambda w, output: os.path.splitext(output[0])[0],
        request=lambda w: json.dumps(JOBS.table(f"{w.kind}_{w.name}")),
        hashes=lambda w, input: " ".join(JOBS.parameters_of(input.metrics)),
        code=code.script("make_table").hash,
    message:
        "Making the table {wildcards.kind}_{wildcards.name}"
    shell:
        "python workflow/scripts/make_table.py --request {params.request:q} --stem {params.stem:q}"
        " --metrics {input.metrics:q} --hashes {params.hashes} 2>&1 | tee {log:q}"


# A main table of its available benchmarks, in a separate folder, so that it is not mistaken for the complete table.
use rule table as partial_table with:
    input:
        metrics=lambda w: jobs.metrics_of(
            JOBS.available_tables.runs(f"{w.kind}_{w.name}")
        ),
        predictions=lambda w: jobs.predictions_of(
            JOBS.available_tables.runs(f"{w.kind}_{w.name}")
        ),
    output:
        paths.partial_table_files("{kind}_{name}"),
    log:
        "work/logs/table/available/{kind}_{name}.log",
    wildcard_constraints:
        kind="main",
        name="|".join(table.removeprefix("main_") for table in PARAMS.all_tables.main),
    params:
        stem=lambda w, output: os.path.splitext(output[0])[0],
        request=lambda w: json.dumps(
            JOBS.table(
                f"{w.kind}_{w.name}",
                JOBS.available_tables.lacking(f"{w.kind}_{w.name}"),
            )
        ),
        hashes=lambda w, input: " ".join(JOBS.parameters_of(input.metrics)),
        code=code.script("make_table").hash,
    message:
        "Making the partial table {wildcards.kind}_{wildcards.name}"


rule available_tables:
    input:
        lambda w: JOBS.available_tables.files(),
        paths.table_files("audit_published"),
    message:
        "Complete tables are in results/, partial tables in results/available/"


rule summary:
    input:
        lambda w: jobs.metrics_of(
            JOBS.runs_behind(paths.summary_file(w.benchmark)),
        ),
    output:
        "results/metrics_{benchmark}.json",
    log:
        "work/logs/table/metrics_{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        hashes=lambda w, input: " ".join(JOBS.parameters_of(input)),
        code=code.script("summarize_scores").hash,
    message:
        "Summarising the scores of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/summarize_scores.py --benchmark {wildcards.benchmark} --out {output:q} --metrics {input:q}"
        " --hashes {params.hashes} 2>&1 | tee {log:q}"


rule audit_published:
    output:
        [
            f"results/audit_published.{suffix}"
            for suffix in paths.TABLE_FORMATS
            if suffix != "html"
        ],
        report(
            "results/audit_published.html",
            caption="../report/audit.rst",
            category="Tables",
            subcategory="published",
            labels={"table": "audit_published"},
        ),
    log:
        "work/logs/table/audit_published.log",
    localrule: True
    conda:
        "../envs/ctxgcd.yaml"
    params:
        code=code.script("audit_published").hash,
    message:
        "Checking the consistency of the published tables"
    shell:
        "python workflow/scripts/audit_published.py --stem results/audit_published 2>&1 | tee {log:q}"


rule curves:
    input:
        lambda w: [
            run.file("history.csv")
            for run in tables.runs_of(PARAMS, "main", w.benchmark)
            if parse_row(run.row).trains
        ],
    output:
        report(
            "results/figures/curves_{benchmark}.png",
            caption="../report/curves.rst",
            category="Figures",
            subcategory="curves",
            labels={"benchmark": "{benchmark}"},
        ),
    log:
        "work/logs/figures/curves_{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        code=code.script("draw_curves").hash,
    message:
        "Drawing the training curves of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/draw_curves.py --benchmark {wildcards.benchmark} --out {output:q} --histories {input:q}"
        " 2>&1 | tee {log:q}"


rule sensitivity_figure:
    input:
        "results/sensitivity_{benchmark}.csv",
    output:
        report(
            "results/figures/sensitivity_{benchmark}.png",
            caption="../report/sensitivity.rst",
            category="Figures",
            subcategory="sensitivity",
            labels={"benchmark": "{benchmark}"},
        ),
    log:
        "work/logs/figures/sensitivity_{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        code=code.script("draw_sensitivity").hash,
    message:
        "Drawing the sensitivity of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/draw_sensitivity.py --benchmark {wildcards.benchmark} --out {output:q} --table {input:q}"
        " 2>&1 | tee {log:q}"


rule embedding:
    input:
        predictions=lambda w: tables.shown_run(PARAMS, w.benchmark).file(
            "predictions.csv"
        ),
        embeddings=lambda w: tables.shown_run(PARAMS, w.benchmark).file(
            "embeddings.npz"
        ),
        split=ancient("results/splits/{benchmark}.csv"),
    output:
        report(
            "results/figures/embedding_{benchmark}.png",
            caption="../report/embedding.rst",
            category="Figures",
            subcategory="embedding",
            labels={"benchmark": "{benchmark}"},
        ),
    log:
        "work/logs/figures/embedding_{benchmark}.log",
    conda:
        "../envs/ctxgcd.yaml"
    params:
        run=lambda w: f"{tables.SHOWN}, seed {tables.shown_run(PARAMS, w.benchmark).seed}",
        code=code.script("draw_embedding").hash,
    message:
        "Drawing the features of {wildcards.benchmark}"
    shell:
        "python workflow/scripts/draw_embedding.py --benchmark {wildcards.benchmark} --run {params.run:q} --out {output:q}"
        " --predictions {input.predictions:q} --embeddings {input.embeddings:q}"
        " --split {input.split:q} 2>&1 | tee {log:q}"
