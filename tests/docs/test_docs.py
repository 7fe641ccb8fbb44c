"""The site builds, fails on what is broken, and shows the published numbers; its worked examples work."""

from __future__ import annotations

import csv
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd.config import Params, parse

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sphinx", reason="Sphinx is not installed; pip install .[docs]")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(docs), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made from."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("_build", "_published"))
    for name in ("README.md", "CONTRIBUTING.md", "params.yaml"):
        shutil.copy(ROOT / name, root)
    (root / "ctxgcd").symlink_to(ROOT / "ctxgcd")
    return root


@pytest.fixture(scope="module")
def site(copied: Path) -> Path:
    done = build(copied / "docs", copied / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    return copied / "site"


def test_every_page_is_in_the_contents(site: Path) -> None:
    contents = (site / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{page}.html"' in contents for page in PAGES if page != "index")


def test_nothing_is_fetched_and_formulas_are_there(site: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    for name, page in pages.items():
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', page), name
    assert pages["methods.html"].count('display="block"') >= 9  # equations
    assert 'class="eqno">(9)' in pages["methods.html"]


def test_every_published_number_is_shown(site: Path) -> None:
    page = html.unescape((site / "reproduce.html").read_text(encoding="utf-8"))
    cells = re.findall(r"<td[^>]*>(?:<p>)?(.*?)(?:</p>)?</td>", page, re.DOTALL)
    shown = sorted(cell.rstrip("†") for cell in cells if re.fullmatch(r"[\d.]+ / [\d.]+ / [\d.]+†?", cell))
    with (ROOT / "ctxgcd/tables/published.csv").open(encoding="utf-8") as file:
        published = sorted(" / ".join(row[q] for q in ("all", "old", "new")) for row in csv.DictReader(file))
    assert shown == published


def test_the_cost_is_that_of_the_plan(
    site: Path, params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctxgcd.plan.plan import write_plan
    from ctxgcd.targets import table_runs

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTXGCD_VIEWS_PER_SECOND", raising=False)
    told = write_plan(params, table_runs(params, "main_challenging"), tmp_path / "plan.csv")
    runs, _, _, _, hours = re.findall(r"^all +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)", told, re.MULTILINE)[0]
    text = (site.parent / "docs/_published/challenging.cost.md").read_text(encoding="utf-8")
    trainings, fits, shown = re.findall(r"^\| all \| (\d+) \| (\d+) \| (\S+) \|", text, re.MULTILINE)[0]
    assert (int(trainings) + int(fits), shown) == (int(runs), hours)


def test_what_is_broken_fails(site: Path) -> None:
    """Built again with three faults: the file of a link, its heading, and a formula's number."""
    page = site.parent / "docs/choices.md"
    page.write_text("# Choices\n\n[a](nowhere.md) [b](methods.md#no-heading) {eq}`no-formula`\n", encoding="utf-8")
    done = build(site.parent / "docs", site)
    assert done.returncode != 0
    assert all(word in done.stderr for word in ("nowhere.md", "no-heading", "no-formula")), done.stderr


# -- worked examples -------------------------------------------------------------------------------------


def examples(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def module(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "example", "exec", dont_inherit=True), names)
    return names


def test_the_method_of_the_example(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ctxgcd import runs
    from ctxgcd.methods.step import Batch, Rows, weighted

    code, fields = examples("add_method.md", "python")
    monkeypatch.setattr(runs, "METHODS", (*runs.METHODS, "undistilled"))
    added = module(fields, SIMGCD_FIELDS=runs.SIMGCD_FIELDS)["UNDISTILLED_FIELDS"]
    monkeypatch.setitem(runs.METHOD_FIELDS, "undistilled", added)
    assert set(runs.METHOD_FIELDS["gcd"]) - set(runs.GCD_ONLY) < set(added)  # what the loop itself reads
    p = runs.resolve(params, "fashion", "undistilled", 0)
    method = module(code, __name__="undistilled")["Undistilled"](p)
    net = method.network(torch.nn.Linear(6, 8), 8, 4)
    rows, labels = torch.randn(8, 6), torch.tensor([0, 3, -1, -1])
    batch = Batch({"sampled": Rows(rows, torch.arange(4), labels)})
    terms, weights = method.losses(net, batch).terms, method.weights(batch)
    weighted(terms, weights).backward()
    assert set(terms) == set(weights) == set(method.terms()) == set(method.columns()) - {"epoch", "lr", "loss"}
    assert all(parameter.grad is not None for parameter in net.parameters())
    without = method.losses(net, Batch({"sampled": Rows(rows, torch.arange(4), torch.full((4,), -1))})).terms
    torch.testing.assert_close(weighted(without, weights), 0.65 * without["info_nce"])
    found = method.discover(net, lambda ids: torch.randn(len(ids), 8), labels, torch.tensor([2, 3]), torch.tensor([4]))
    assert (found.unlabelled.shape, found.test.shape) == ((2,), (1,))


def test_the_entry_of_the_example(params: Params) -> None:
    from ctxgcd.runs import k_of
    from ctxgcd.targets import check_all, table_runs

    added = yaml.safe_load(examples("add_benchmark.md", "yaml")[0])
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for section, entries in added.items():
        content[section] |= entries
    with_it = parse(content)
    check_all(with_it)
    assert k_of(with_it.benchmarks["cub100"]) == 100
    assert {run.benchmark for run in table_runs(with_it, "main_cub100")} == {"cub100"}


def test_the_layout_of_the_example(tmp_path: Path) -> None:
    source = module(examples("add_benchmark.md", "python")[0], __name__="flat")["FLAT"]
    (tmp_path / "train.txt").write_text("x.png wren\n2.png robin\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a.png robin\n", encoding="utf-8")
    found = source.manifest(tmp_path)
    assert found.values.tolist() == [
        [0, "x.png", 1, "wren", "train"],
        [1, "2.png", 0, "robin", "train"],
        [2, "a.png", 0, "robin", "test"],
    ]
    (tmp_path / "test.txt").unlink()
    assert len(source.manifest(tmp_path)) == 2
