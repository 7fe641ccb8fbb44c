"""What the repository promises about itself."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

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
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert not [link for link in links if not (page.parent / link).exists()], page


def test_no_output_of_a_rule_is_in_git() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/results/", "/work/"} <= set(ignored)
