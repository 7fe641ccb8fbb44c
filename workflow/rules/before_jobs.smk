"""Checks and reports that run before Snakemake plans jobs: unknown targets, `plan`, `why` and the available tables."""

with reported(job=False):
    named = [rule.name for rule in workflow.rules if not rule.has_wildcards()]
    targets.refuse_unknown_rules(TARGETS, named)
    if available.depends_on_data(TARGETS):
        print(JOBS.available_tables.summary(), file=sys.stderr)
    # With a default storage provider: its folder, and the path under which the rules know its files.
    stored = workflow.storage_settings
    through, known_as = "", ""
    if provider := stored.default_storage_provider:
        through = stored.default_storage_prefix
        known_as = os.path.join(
            stored.local_storage_prefix, provider, through.lstrip("/")
        )
    for question in {"plan", "why"}.intersection(TARGETS):
        wanted = [target for target in TARGETS if target != question] or ["all_tables"]
        for target in wanted:
            if target not in named and not any(
                one.is_producer(os.path.join(known_as, target))
                for one in workflow.rules
            ):
                raise UserError(
                    f"{question}: no rule makes '{target}'; give the name of a rule or a file in results/"
                )
        behind = [run for target in wanted for run in JOBS.runs_behind(target)]
        if question == "plan":
            print(write_plan(PARAMS, behind, paths.PLAN))
        else:
            words = [word for word in sys.argv[1:] if word != question]
            main = workflow.main_snakefile
            print(why(PARAMS, behind, words, main, Path(through)))
        sys.exit()
