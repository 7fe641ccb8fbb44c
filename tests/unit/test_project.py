"""What the repository promises about itself."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import yaml

import ctxgcd

ROOT = Path(__file__).parents[2]


def test_the_environment_of_the_rules_is_the_lock_file() -> None:
    script = runpy.run_path(str(ROOT / "workflow/scripts/write_environment.py"))
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert (ROOT / "workflow/envs/ctxgcd.yaml").read_text(encoding="utf-8") == script["environment"](lock)
    assert {"torch==2.14.1", "torchvision==0.29.1"} <= set(lock.splitlines())


def test_the_readme_shows_the_measured_table() -> None:
    mark = "<!-- measured: main_fashion -->"
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split(mark)
    assert len(shown) == 3
    assert shown[1].strip().endswith((ROOT / "docs/measured/main_fashion.md").read_text(encoding="utf-8").strip())


def test_every_local_link_of_the_documents_exists() -> None:
    broken = []
    for page in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            place, _, anchor = link.partition("#")
            target = page.parent / place if place else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: small letters, no punctuation, hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_version_is_said_once() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == ctxgcd.__version__
    assert not re.search(r"^version\s*=\s*\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


def test_no_output_of_a_rule_is_in_git() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/results/", "/work/"} <= set(ignored)
