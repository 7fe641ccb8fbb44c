"""Consistency of the repository: pages, links, version, continuous integration."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import ctxgcd
from tests.helpers.places import ROOT


def test_the_environment_of_the_rules_is_the_lock_file() -> None:
    script = runpy.run_path(str(ROOT / "workflow/scripts/write_environment.py"))
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert (ROOT / "workflow/envs/ctxgcd.yaml").read_text(encoding="utf-8") == script["environment"](lock)
    assert {"torch==2.14.1", "torchvision==0.29.1"} <= set(lock.splitlines())


def test_pages_show_the_measured_table() -> None:
    script = runpy.run_path(str(ROOT / "workflow/scripts/publish_results.py"))
    table = (ROOT / "docs/measured/main_fashion.md").read_text(encoding="utf-8")
    for page, name, text in (
        ("docs/quick_start.md", "main_fashion", table),
        ("README.md", "main_fashion, in short", script["in_short"](table)),
    ):
        shown = (ROOT / page).read_text(encoding="utf-8").split(f"<!-- measured: {name} -->")
        assert len(shown) == 3
        assert shown[1].strip().endswith(text.strip())


def test_publishing_writes_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(ROOT / "workflow/scripts/publish_results.py"))
    for page in (*script["PAGES"], Path("params.yaml")):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    run = tmp_path / "results/runs/fashion/simgcd/seed0/metrics.json"
    run.parent.mkdir(parents=True)
    environment = {"device": "cpu: one", "python": "3", "torch": "2", "timm": "1", "numpy": "2", "scikit-learn": "1"}
    metrics = {"environment": environment, "commit": "abc", "seconds": 7.0, "peak_memory_mb": 5}
    run.write_text(json.dumps(metrics), encoding="utf-8")
    table = "### Accuracy of it\n\n| Method | All |\n|:--|--:|\n| SimGCD | 12.3 |\n\n- A note.\n"
    (tmp_path / "results/main_fashion.md").write_text(table, encoding="utf-8")
    before = {page: (tmp_path / page).read_text(encoding="utf-8") for page in script["PAGES"]}
    monkeypatch.chdir(tmp_path)
    script["publish"]("fashion")
    after = {page: (tmp_path / page).read_text(encoding="utf-8") for page in script["PAGES"]}
    assert {str(page) for page in before if before[page] != after[page]} == {"README.md", "docs/quick_start.md"}
    short = "in short -->\nAccuracy of it:\n\n| Method | All |\n|:--|--:|\n| SimGCD | 12.3 |\n<!-- measured"
    assert short in after[Path("README.md")]
    assert "Commit abc. Device cpu: one. Python 3, torch 2" in after[Path("docs/quick_start.md")]
    assert table in after[Path("docs/quick_start.md")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_local_link_of_the_documents_exists() -> None:
    broken = []
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "_published"]
    for page in (*ROOT.glob("*.md"), *pages):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            place, _, anchor = link.partition("#")
            target = page.parent / place if place else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_every_named_page_exists() -> None:
    """Pages named in code, rules, profiles and documents, such as "docs/methods.md", exist."""
    dead = []
    for file in texts():
        for name in re.findall(r"(?<![\w/.}-])[a-z_][a-z0-9_/]*\.md\b", file.read_text(encoding="utf-8")):
            places = (ROOT / name, ROOT / "docs" / name, file.parent / name)
            if not name.startswith(("results/", "_published/")) and not any(place.exists() for place in places):
                dead.append(f"{file.relative_to(ROOT)}: {name}")
    assert not dead


def test_every_named_section_and_equation_exists() -> None:
    """References of the forms `docs/methods.md, "Heading"` and "equation `label` of docs/methods.md"."""
    sections, equations = [], []
    for file in texts():
        text = file.read_text(encoding="utf-8")
        sections += [(file, *found) for found in re.findall(r'(docs/\w+\.md), "([^"]+)"', text)]
        equations += [(file, *found[::-1]) for found in re.findall(r"equation `(\w+)` of\s+(docs/\w+\.md)", text)]
    assert len(sections) >= 2
    assert len(equations) >= 9
    dead = [one for one in sections if f"\n## {one[2]}\n" not in (ROOT / one[1]).read_text(encoding="utf-8")]
    dead += [one for one in equations if f"$$ ({one[2]})\n" not in (ROOT / one[1]).read_text(encoding="utf-8")]
    assert not dead


def texts() -> list[Path]:
    """Return the package, rules, scripts, profiles, examples and pages written by hand."""
    of_folders = [
        path
        for folder in ("ctxgcd", "workflow", "profiles", "examples", "docs")
        for suffix in ("py", "smk", "yaml", "md")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        if not {"_build", "_published", "measured"} & set(path.parts)
    ]
    return sorted([*of_folders, *ROOT.glob("*.md"), ROOT / "Snakefile", ROOT / "Makefile", ROOT / "params.yaml"])


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as anchors of links: lower case, no punctuation, hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_version_is_defined_once() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == ctxgcd.__version__
    assert not re.search(r"^version\s*=\s*\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


def test_no_output_of_a_rule_is_in_git() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/results/", "/work/"} <= set(ignored)


def test_continuous_integration_calls_targets_of_the_makefile() -> None:
    """The CI and .ci/run call targets of the Makefile."""
    targets = set(re.findall(r"^([\w.-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    called = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called += re.findall(r"^make \w+$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"make test", "make check"} <= set(called)
    assert {word.removeprefix("make ") for word in called} <= targets


def test_forms_and_the_catalogue_entry_can_be_read() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    for form in (yaml.safe_load(path.read_text(encoding="utf-8")) for path in forms):
        assert form["name"]
        assert form["description"]
        assert len({field["id"] for field in form["body"]}) == len(form["body"]) > 0
    assert yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]["report"]


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY:(.*?[^\\])$", makefile, re.MULTILINE | re.DOTALL)
    assert phony
    assert {line.split()[0] for line in listed.splitlines()} == set(phony[1].replace("\\\n", " ").split())
