"""The site builds, fails on broken links, and shows the published numbers; its examples work."""

from __future__ import annotations

import csv
import html
import math
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml

from ctxgcd.catalogue.sections import Closed
from ctxgcd.config import Params, parse
from tests.helpers.places import ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sphinx", reason="Sphinx is not installed; pip install .[docs]")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(docs), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the site."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("_build", "_published"))
    for name in ("CONTRIBUTING.md", "params.yaml"):
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


def test_every_number_of_the_field_is_shown_with_its_source(site: Path) -> None:
    """As in its file, under its backbone; numbers on the test part are under a heading of their own."""
    from ctxgcd.tables.display import benchmark_name
    from ctxgcd.tables.field import BACKBONES, METHODS, load_field

    page, shown = (site / "field.html").read_text(encoding="utf-8"), []
    for part in page.split("<h2>")[1:]:
        heading = part.partition("<a")[0]
        for rows in re.findall(r"<table.*?</table>", part, re.DOTALL):
            lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in rows.split("<tr")[1:]]
            texts = [
                [html.unescape(re.sub("<.*?>", "", cell)).replace("\u00a0", " ") for cell in line] for line in lines
            ]
            head = texts[0][1:-1]
            for method, *numbers, source in texts[1:]:
                shown += [(heading, method, *of, source) for of in zip(head, numbers, strict=True) if of[1]]
    expected = []
    for one in load_field().to_dict("records"):
        numbers = ["–" if math.isnan(one[q]) else f"{one[q]:.1f}" for q in ("all", "old", "new")]
        heading = BACKBONES[one["backbone"]] + ", on the official test part" * one["on_test_part"]
        cell = " / ".join(numbers) + "†" * one["inconsistent"]
        expected.append((heading, METHODS[one["method"]], benchmark_name(one["benchmark"]), cell, one["source"]))
    straight = [(*of, source.replace("’", "'")) for *of, source in shown]  # the site has typographic apostrophes
    assert sorted(straight) == sorted(expected)
    assert len(shown) == 271
    assert 'href="https://arxiv.org/abs/2504.06120v1"' in page
    assert 'href="https://github.com/CVMI-Lab/SimGCD/tree/f843f27"' in page


def test_the_cost_is_that_of_the_plan(
    site: Path, params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctxgcd.pipeline.tables import table_runs
    from ctxgcd.plan.plan import write_plan

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTXGCD_VIEWS_PER_SECOND", raising=False)
    text = write_plan(params, table_runs(params, "main_challenging"), tmp_path / "plan.csv")
    runs, _, _, _, hours = re.findall(r"^all +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)", text, re.MULTILINE)[0]
    text = (site.parent / "docs/_published/challenging.cost.md").read_text(encoding="utf-8")
    trainings, fits, shown = re.findall(r"^\| all \| (\d+) \| (\d+) \| (\S+) \|", text, re.MULTILINE)[0]
    assert (int(trainings) + int(fits), shown) == (int(runs), hours)


def test_every_parameter_is_shown(site: Path, params: Params) -> None:
    from ctxgcd.catalogue.entries import METHODS

    page = html.unescape((site / "parameters.html").read_text(encoding="utf-8"))
    keys = [*Params.model_fields, *(key for entry in METHODS.values() for key in entry.values.model_fields)]
    assert all(f'<span class="pre">{key.rstrip("_")}</span>' in page for key in keys)
    sections = site.parent / "docs/_published"
    rows = {
        key: [cell.strip() for cell in line.split("|")][1:-1]
        for line in (sections / "parameters.protocols.md").read_text(encoding="utf-8").splitlines()
        for key in re.findall(r"^\| `(\w+)`", line)
    }
    assert list(params.protocols) == ["official", "fashion", "cub50", "cub50_vit", "cifar10_12k"]
    assert rows["lr"][1:-1] == ["float, > 0", "", *(f"`{protocol.lr}`" for protocol in params.protocols.values())]
    assert rows["weight_decay"][3] == "`5.0e-05`"  # as YAML reads it
    assert rows["tail"][1:4] == ["`blocks` or `adapter`", "`blocks`", "`blocks`"]  # choices, default, official
    assert all(len(row[-1]) > 10 for row in rows.values())


def test_a_parameter_without_a_description_is_refused() -> None:
    script = runpy.run_path(str(ROOT / "docs/_extensions/parameters.py"))

    class Undescribed(Closed):
        seed: int

    with pytest.raises(LookupError, match=r"Undescribed\.seed has no description"):
        script["description"](Undescribed, "seed")


def test_every_name_of_the_package_exists(params: Params) -> None:
    """Modules, functions and parameters named in pages exist, except those of the examples."""
    added = {"ctxgcd.methods.mean_teacher", "ctxgcd.methods.mean_teacher.MeanTeacher", "methods.mean_teacher"}
    known = params.model_dump(by_alias=True)
    found, unknown = set(), []
    for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        if page.name == "migration.md":  # names of earlier versions
            continue
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?<![./\w])ctxgcd(?:\.[a-zA-Z_]\w*)+(?!\.?[\w/])", text):
            found.add(name)
            if name not in added and not exists(name):
                unknown.append(f"{page.name}: {name}")
        for key in re.findall(r"`((?:methods|protocols|backbones|estimate|split|all_tables)(?:\.\w+)+)`", text):
            found.add(key)
            within: Any = known
            for part in key.split("."):
                within = within.get(part) if isinstance(within, dict) else None
            if within is None and key not in added:
                unknown.append(f"{page.name}: {key}")
    assert not unknown
    assert {"ctxgcd.losses.info_nce.info_nce", "methods.simgcd.entropy_weight"} <= found


def exists(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_what_is_broken_fails(site: Path) -> None:
    """The build fails for a wrong file of a link, a wrong heading, and a wrong number of a formula."""
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


NAME = "mean_teacher"
ROW = f"{NAME}+bank_size=40+epochs=3+teacher_warmup_epochs=1+batch_size=16+projector_width=32+projection_dim=7+lr=0.003"


@pytest.fixture
def example(committed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Params]:
    """params.yaml with the section of the example, whose file and entry are installed as in docs/add_method.md."""
    from ctxgcd import methods
    from ctxgcd.catalogue import entries

    file, entry, _ = examples("add_method.md", "python")
    (tmp_path / f"{NAME}.py").write_text(file, encoding="utf-8")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    added = module(entry, **{**vars(entries), "__name__": "entries", "METHODS": {}})["METHODS"]
    monkeypatch.setitem(entries.METHODS, NAME, added[NAME])
    committed["methods"] |= yaml.safe_load(examples("add_method.md", "yaml")[0])["methods"]
    yield parse(committed)
    sys.modules.pop(f"ctxgcd.methods.{NAME}", None)


def test_the_method_of_the_example_is_planned(example: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctxgcd.catalogue.entries import all_terms
    from ctxgcd.pipeline.resolve import resolve
    from ctxgcd.pipeline.runs import Run
    from ctxgcd.pipeline.targets import check
    from ctxgcd.plan.plan import write_plan
    from ctxgcd.tables.display import method_name

    target = f"results/runs/fashion/{NAME}/seed0/metrics.json"
    assert check(example, [target]) == []
    resolved = resolve(example, "fashion", NAME, 0)
    assert {key: resolved[key] for key in ("ema", "bank_size", "entropy_weight", "epochs")} == {
        **{"ema": 0.999, "bank_size": 4096},
        **{"entropy_weight": 1.0, "epochs": example.protocols["fashion"].epochs},
    }
    assert "T_warm" not in resolved
    assert method_name(ROW).startswith("Mean teacher, bank_size = 40")
    assert all_terms()["bank_nce"].head == "InfoNCE (bank)"  # a column and a panel of the loss terms
    monkeypatch.chdir(tmp_path)
    assert "fashion" in write_plan(example, [Run("fashion", NAME, 0)], tmp_path / "plan.csv")


def test_the_method_of_the_example_trains(example: Params, tmp_path: Path) -> None:
    import torch
    from torch import Tensor, nn

    from ctxgcd.catalogue.entries import METHODS, load
    from ctxgcd.config import completed
    from ctxgcd.methods.step import Batch, Rows
    from ctxgcd.pipeline.resolve import resolve
    from ctxgcd.training.loop import train
    from ctxgcd.training.row import Row
    from ctxgcd.training.step_inputs import StepInputs
    from ctxgcd.training.views import Asked, BankViews

    images, kept, dim, drawn = 96, 6, 8, torch.Generator().manual_seed(0)
    clean = (torch.randn(10, kept, generator=drawn) * 2)[torch.arange(images) % 10]
    bank = clean + torch.randn(3, images, kept, generator=drawn) * 0.5
    labels = torch.where(torch.arange(images) % 10 < 5, torch.arange(images) % 10, -1)
    tail = nn.Linear(kept, dim)
    with torch.no_grad():
        tail.weight.normal_(generator=drawn)
        tail.bias.zero_()
    p = completed(resolve(example, "fashion", ROW, 0))

    class Interrupted(BankViews):
        left = -1  # steps

        def pairs(self, groups: Asked, device: torch.device) -> Iterator[Tensor]:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().pairs(groups, device)

    def run(name: str, steps: int = -1) -> tuple[Row, StepInputs]:
        views = Interrupted(bank, clean)
        views.left = steps
        inputs = StepInputs(views, labels, "float32", 0)
        method = load(NAME)(p)
        network = method.network(deepcopy(tail), dim, inputs.old_classes).eval()
        return Row(method, network, tmp_path / name, "example", {}), inputs

    whole, inputs = run("whole.pt")
    start = deepcopy(whole.network.state_dict())
    batch = Batch({"sampled": Rows(bank[:2].flatten(0, 1), torch.arange(images), labels)})
    whole.network.train()
    found = whole.method.losses(whole.network, batch)
    sum(found.terms.values()).backward()
    assert set(found.terms) == set(whole.method.terms()) == set(whole.method.weights(batch)) == set(METHODS[NAME].terms)
    assert not whole.network.teacher.training  # type: ignore[operator]
    assert all(torch.equal(value, start[name]) for name, value in whole.network.state_dict().items())

    train(whole, inputs)
    changed = {name.split(".")[0] for name, value in whole.network.state_dict().items() if not value.equal(start[name])}
    assert changed == {"tail", "projector", "classifier", "teacher", "bank"}
    with (tmp_path / "whole_history.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "lr", "teacher_temperature", "agreement", "loss", *whole.method.terms()]
    assert all(0 < float(row["agreement"]) <= 1 for row in rows)
    assert [whole.method.collapsed({"bank_nce": value}) for value in (math.log(31 + 40), 3.0)] == [True, False]

    with pytest.raises(KeyboardInterrupt):
        train(*run("resumed.pt", steps=2 * (images // 16)))  # in the second epoch
    resumed, again = run("resumed.pt")
    train(resumed, again)
    assert resumed.history == whole.history
    ours, theirs = resumed.network.state_dict(), whole.network.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    unlabelled = torch.nonzero(labels < 0)[:, 0]
    found_classes = whole.method.discover(
        whole.network, lambda ids: inputs.features(whole.network, ids), labels, unlabelled, unlabelled[:3]
    )
    assert (found_classes.unlabelled.shape, found_classes.test.shape) == (unlabelled.shape, (3,))


def test_the_group_of_the_example_is_planned() -> None:
    import torch

    from ctxgcd.methods.step import Look
    from ctxgcd.utils.seeding import generator

    labels = torch.where(torch.arange(40) % 4 == 0, 0, -1)
    code = examples("add_method.md", "python")[2]
    method = module(code, __name__="example")["MoreUnlabelled"]
    values = {"batch_size": 8, "teacher_temperature_start": 0.07, "teacher_temperature_end": 0.04}
    made = method({**values, "teacher_warmup_epochs": 3, "teacher_schedule": "linear"})
    look = Look(0, labels, None, None, None, lambda name: generator(0, name, 0))  # type: ignore[arg-type]
    plan = made.before_epoch(None, look)
    assert [list(step) for step in plan.steps] == [["sampled", "more"]] * 5
    groups = [step["more"].ids for step in plan.steps]
    assert all(ids.shape == (32,) and bool((labels[ids] < 0).all()) for ids in groups)
    assert not torch.equal(groups[0], groups[1])


def test_own_images_of_the_example(committed: dict[str, Any]) -> None:
    from ctxgcd.pipeline.resolve import protocol_of, values_of

    added = yaml.safe_load(examples("own_images.md", "yaml")[0])
    for section, entries in added.items():
        committed[section] |= entries
    params = parse(committed)
    assert protocol_of(params, "flowers") == params.protocols["cub50"]
    methods = params.benchmarks["flowers"].methods
    for method in params.methods:
        got, of_cub50 = (values_of(params, method, "default", of) for of in ("flowers", "cub50"))
        assert got == of_cub50 | {key: got[key] for key in ("entropy_weight",) if key in got}, methods


def test_the_entry_of_the_example(params: Params) -> None:
    from ctxgcd.pipeline.classes import k_of
    from ctxgcd.pipeline.tables import table_runs
    from ctxgcd.pipeline.targets import check

    added = yaml.safe_load(examples("add_benchmark.md", "yaml")[0])
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for section, entries in added.items():
        content[section] |= entries
    with_it = parse(content)
    check(with_it, [])
    assert k_of(with_it.benchmarks["cub100"]) == 100
    assert {run.benchmark for run in table_runs(with_it, "main_cub100")} == {"cub100"}


def test_the_layout_of_the_example(tmp_path: Path) -> None:
    reader = module(examples("add_benchmark.md", "python")[0], __name__="flat")["FLAT"]
    (tmp_path / "train.txt").write_text("x.png wren\n2.png robin\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a.png robin\n", encoding="utf-8")
    found = reader.manifest(tmp_path)
    assert found.values.tolist() == [
        [0, "x.png", 1, "wren", "train"],
        [1, "2.png", 0, "robin", "train"],
        [2, "a.png", 0, "robin", "test"],
    ]
    (tmp_path / "test.txt").unlink()
    assert len(reader.manifest(tmp_path)) == 2
