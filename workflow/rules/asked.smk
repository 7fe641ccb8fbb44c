"""What is answered before Snakemake plans a job: a mistyped target, the plan, and what the data at hand allows."""

with reported(job=False):
    named = [rule.name for rule in workflow.rules if not rule.has_wildcards()]
    targets.refuse_unknown_rules(TARGETS, named)
    if available.asked_for(TARGETS):
        print(at_hand().told(), file=sys.stderr)
    if "plan" in TARGETS:
        wanted = [target for target in TARGETS if target != "plan"] or ["all_tables"]
        for target in wanted:
            if target not in named and not any(
                one.is_producer(target) for one in workflow.rules
            ):
                raise UserError(
                    f"plan: no rule makes '{target}'; give a rule, or a file of results/"
                )
        asked = [run for target in wanted for run in runs_behind(target)]
        print(write_plan(PARAMS, asked, Path("work/plan.csv")))
        sys.exit()
