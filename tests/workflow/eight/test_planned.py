"""The output of dry runs, `plan` and `why`, and the style of the rules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.forked import snakemake
from tests.helpers.places import PROGRAMS, ROOT
from tests.helpers.workflow import ABLATION_ROWS, EIGHT, PLANNED_ROWS, Project, folder_of, fresh

# -- dry runs --------------------------------------------------------------------------------


def test_all_tables_plans_trainings_of_all_eight(tiny: Project) -> None:
    result = tiny.dry("all_tables")
    assert result.trainings == {(benchmark, row, 0) for benchmark in EIGHT for row in PLANNED_ROWS}
    assert result.jobs["train"] == result.jobs["score"] == len(EIGHT) * len(PLANNED_ROWS)
    assert not (tiny.folder / "results").exists()


def test_demo_needs_no_data(tmp_path: Path) -> None:
    project = fresh(tmp_path / "project", tmp_path / "nothing")
    result = project.dry("demo")
    assert {benchmark for benchmark, _, _ in result.trainings} == {"fashion"}
    assert sum(row == "kmeans" for _, row, _ in result.trainings) == 5
    # Six rows of the main table, two more of the ablation, and one more of the sensitivity.
    assert len(result.trainings) == result.jobs["train"] == 6 * 5 + 2 * 3 + 3


def test_one_table_plans_only_its_runs(tiny: Project) -> None:
    result = tiny.dry("results/ablation_scars.csv")
    assert result.trainings == {("scars", row, 0) for row in ABLATION_ROWS}
    assert result.jobs["image_store"] == result.jobs["weights"] == 1


def test_a_row_with_another_backbone_plans_its_weights_and_features(tiny: Project) -> None:
    rows = [f"{row}{changed}" for row in ("kmeans", "simgcd") for changed in ("", "+backbone=dinov3_vitb16")]
    result = tiny.call("-n", "-p", *(f"{folder_of(('cub', row, 0))}/run.json" for row in rows))
    assert result.code == 0, result.output
    model = "vit_base_patch16_dinov3.lvd1689m"
    prepared = re.findall(r"prepare_weights.py --model (\S+) .*?--out work/weights/(\w+)-32-\w+\.pt", result.output)
    assert sorted(prepared) == [("test_vit", "tiny"), (model, "dinov3_vitb16")]
    extracted = re.findall(r'extract_features.py .*?"model": "(\S+)".*?--weights work/weights/(\w+)-32', result.output)
    assert sorted(extracted) == sorted(prepared)
    assert len(re.findall(r"pack_images.py", result.output)) == 1


def test_a_host_of_eight_gpus_gives_imagenet_all_of_them(another: Project) -> None:
    runs = [f"{folder_of((name, 'simgcd', 5))}/run.json" for name in ("imagenet_1k", "cub")]
    result = another.call("-n", "-p", *runs, "--profile", "profiles/gpus8")
    assert result.code == 0, result.output
    devices = dict(re.findall(r'"benchmark": "(\w+)".*? --devices (\d)', result.output))
    assert devices == {"imagenet_1k": "8", "cub": "1"}


# -- style -----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("-q", "--cores", "1"), ("--quiet", "rules"), ("--quiet", "all")])
def test_why_lists_the_same_runs_with_quiet_options(tiny: Project, words: tuple[str, ...]) -> None:
    result = tiny.call("why", "results/ablation_scars.csv", *words)
    assert result.code == 0, result.output
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in result.output


def test_plan_and_why_find_files_of_a_storage_provider(tiny: Project) -> None:
    """As in the profile for Kubernetes, where results are below pods/."""
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", "pods")
    result = tiny.call("why", "results/ablation_scars.csv", *storage)
    assert result.code == 0, result.output
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in result.output
    planned = tiny.call("plan", "results/ablation_scars.csv", *storage)
    assert planned.code == 0, planned.output


def test_why_can_be_called_from_another_folder(tiny: Project) -> None:
    name = tiny.folder.name
    environment = {"CTXGCD_DATA": str(tiny.data), "PYTHONPATH": str(tiny.folder)}
    words = ("-s", f"{name}/Snakefile", "-d", name, "why", "results/ablation_scars.csv")
    status, result = snakemake(tiny.folder.parent, environment, *words)
    assert status == 0, result
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in result


def test_lint_is_clean(tiny: Project) -> None:
    result = tiny.call("--lint")
    assert result.code == 0, result.output
    assert "Congratulations" in result.output


def test_format_is_clean() -> None:
    rules = sorted(str(path) for path in (ROOT / "workflow/rules").glob("*.smk"))
    assert rules
    call = [str(PROGRAMS / "snakefmt"), "--check", str(ROOT / "Snakefile"), *rules]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
