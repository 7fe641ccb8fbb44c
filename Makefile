# `make help` lists the targets. Each target makes the environment that it needs, pinned by requirements.lock.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PYTHON_THERE ?= 3.12
override VENV := $(VENV:~/%=$(HOME)/%)
# The target of VENV when a recipe starts, so that running commands keep it if VENV changes later.
BIN = "$(or $(shell cd "$(VENV)/bin" 2>/dev/null && pwd -P),$(VENV)/bin)"

.DEFAULT_GOAL := help
.PHONY: help environment demo test test-quick test-browser check docs linkcheck verify compare soak format lock dvc.yaml restore bench \
  gpu-kit publish clean

help: ## list the targets
	@grep -E '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# VENV is a link to VENV-HASH, a hash of requirements.lock, pyproject.toml and Python's version.
environment: ## make the environment (.venv, or VENV=folder) if it is missing or its pins changed
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "error: $(PYTHON) is not supported: ctxgcd requires Python 3.11 or newer; select one with make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m workflow.scripts.make_environment "$(VENV)"

demo: environment ## train everything on the embedded benchmark and print its tables (minutes on two cores)
	$(BIN)/snakemake together demo
	$(BIN)/snakemake demo
	@cat results/main_fashion.md results/ablation_fashion.md results/statistics_fashion.md results/sensitivity_fashion.md
	@echo "Tables: results/*_fashion.{csv,md,tex,html}   figures: results/figures/*_fashion.png"

test: environment ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-quick: environment ## run the fast tests: tests/unit and the golden values, without those marked slow
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not soak" tests/unit tests/test_golden.py tests/test_golden_clustered.py

test-browser: environment ## test the report in a headless Chromium (skipped, with the reason, if there is none)
	$(BIN)/python -m pytest -m browser tests/browser

check: environment ## lint, format, types, import contract, workflow lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint

docs: environment ## build the site in docs/_build; a broken link or reference fails
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build

linkcheck: environment ## check every external link of the site (needs a network)
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

verify: environment ## make the demo and compare its tables with the committed ones
	$(BIN)/snakemake together demo
	$(BIN)/snakemake demo
	$(BIN)/python workflow/scripts/verify_results.py

compare: environment ## train the same runs with BASE (a revision or folder) and this checkout, compare bit for bit (20 minutes)
	$(BIN)/python workflow/scripts/compare_checkouts.py "$(BASE)" $(ARGS)

soak: environment ## run the tests marked soak, and interrupt a demo 50 times and `snakemake together` 20 times (an hour)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.resume.soak --kills 50
	$(BIN)/python -m tests.resume.soak --kills 20 --together

format: environment ## format Python and Snakemake files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

lock: ## resolve requirements.in into requirements.lock and the workflow's environment file
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/python -m pip install --quiet --requirement requirements.in
	.lock-venv/bin/python -m pip freeze --all | grep -v '^pip==' | \
	  sed -E '/^(nvidia-|cuda-|triton)/ s/$$/ ; sys_platform == "linux"/' > requirements.lock
	PYTHONPATH=. .lock-venv/bin/python workflow/scripts/write_environment.py
	rm -rf .lock-venv

dvc.yaml: environment ## write dvc.yaml from params.yaml
	$(BIN)/python workflow/scripts/write_dvc_stages.py

restore: environment ## pull the results recorded by DVC and keep those that match the current params.yaml and code
	$(BIN)/python workflow/scripts/restore_results.py

bench: environment ## benchmark all steps against plain reference code (10 minutes; results/bench/)
	$(BIN)/python workflow/scripts/run_bench.py

gpu-kit: environment ## pack work/gpu-kit.tar for a GPU without a network (PHOTOGRAPHS=folder includes JPEGs)
	$(BIN)/python workflow/scripts/pack_gpu_kit.py --python-there $(PYTHON_THERE) --photographs "$(PHOTOGRAPHS)"

publish: environment ## copy the tables and figures of the demo and of `bench` to docs/ and README.md
	$(BIN)/python workflow/scripts/publish_results.py fashion
	if test -e results/bench/budget.csv; then $(BIN)/python workflow/scripts/publish_bench.py; fi

clean: ## delete caches, but not results/ and work/runs/, which contains checkpoints and finished runs
	find work -mindepth 1 -maxdepth 1 ! -name runs -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache
