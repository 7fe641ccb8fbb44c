"""What runs before Snakemake plans jobs: unknown targets, `plan`, `why`, `together` and the available tables."""

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
    questions = [word for word in ("plan", "why", "together") if word in TARGETS]
    if len(questions) > 1:
        raise UserError(
            f"{' and '.join(questions)} cannot be combined; give one of them"
        )
    for question in questions:
        wanted = [target for target in TARGETS if target != question] or ["all_tables"]
        for target in wanted:
            if target not in named and not any(
                one.is_producer(os.path.join(known_as, target))
                for one in workflow.rules
            ):
                raise UserError(
                    f"{question}: no rule makes '{target}'; give the name of a rule or a file in results/"
                )
        behind = {target: JOBS.runs_behind(target) for target in wanted}
        runs = [run for of in behind.values() for run in of]
        words = [word for word in sys.argv[1:] if word != question]
        main = workflow.main_snakefile
        if question == "plan":
            print(write_plan(PARAMS, runs, paths.PLAN))
        elif question == "why":
            print(why(PARAMS, runs, words, main, Path(through)))
        elif none := [target for target in wanted if not behind[target]]:
            raise UserError(
                f"together: no run is behind '{none[0]}'; leave it out, or give a target with runs, as demo"
            )
        elif unfinished := together.unfinished(PARAMS, runs, Path(through)):
            parts = together.divided(PARAMS, unfinished, workflow.cores or 1)
            together.call(parts, wanted, words, main, targets_of)
        else:
            print(f"together: every run is already finished; {together.NEXT}")
        sys.exit()


onsuccess:
    if workflow.is_main_process and together.targets():
        print(f"together: the runs are in {paths.RUN_CACHE}; {together.NEXT}")
