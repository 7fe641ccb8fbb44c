"""params.yaml: refused values, and their error messages."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params, check_file, parse, read
from ctxgcd.errors import UserError
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.places import ROOT


def change(config: dict[str, Any], place: str, value: Any) -> None:
    """Set a key by its dotted path; DELETE removes it."""
    *above, last = place.split(".")
    for part in above:
        config = config[part]
    if value is DELETE:
        del config[last]
    else:
        config[last] = value


DELETE = type("Delete", (), {"__repr__": lambda self: "(deleted)"})()  # the same name in every worker
PAPER = "protocols.official"


def test_committed_file_is_valid(committed: dict[str, Any]) -> None:
    params = read(ROOT / "params.yaml")
    assert params == parse(committed)
    assert params.model_dump(by_alias=True) == committed  # nothing is added, removed or converted


def test_numbers_are_the_same_in_yaml_1_1_and_1_2(committed: dict[str, Any]) -> None:
    """`1e-3`, `on` and `010` differ between YAML 1.1 and 1.2."""
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    ruamel = pytest.importorskip("ruamel.yaml")
    reader = ruamel.YAML(typ="safe", pure=True)
    assert reader.version is None  # 1.2
    assert reader.load(text) == committed


CASES: list[tuple[str, Any, list[str]]] = [
    # unknown keys: the place and the nearest valid key
    (f"{PAPER}.epoch", 3, [f"{PAPER}: unknown key 'epoch'", "did you mean 'epochs'?"]),
    ("methods.full.t_warm", 3, ["methods.full: unknown key 't_warm'", "did you mean 'T_warm'?"]),
    ("methods.full.lambda_m", 0.1, ["methods.full: unknown key 'lambda_m'", "did you mean 'lambda_"]),
    (
        "benchmarks.cub.methods.simgcd.entropy_weigth",
        1.0,
        ["benchmarks.cub.methods.simgcd: unknown key", "'entropy_weight'?"],
    ),
    ("benchmarks.cub.images.tests", 1, ["benchmarks.cub.images: unknown key", "did you mean 'test'?"]),
    ("split.seeds", 1, ["split: unknown key 'seeds'", "did you mean 'seed'?"]),
    ("sensitivity.tau", [0.1], ["sensitivity: unknown key 'tau'", "valid: lambda_n, lambda_c, k"]),
    ("benchmark", {}, ["unknown key 'benchmark'", "did you mean 'benchmarks'?"]),
    ("shema", 1, ["unknown key 'shema'", "did you mean 'schema'?"]),
    # missing keys
    (f"{PAPER}.lr", DELETE, [f"{PAPER}.lr: this key is missing"]),
    ("methods.full.delta", DELETE, ["methods.full.delta: this key is missing"]),
    ("benchmarks.cub.images.test", DELETE, ["benchmarks.cub.images.test: this key is missing"]),
    ("seeds", DELETE, ["seeds: this key is missing"]),
    ("schema", DELETE, ["schema: this key is missing"]),
    # wrong types
    (f"{PAPER}.lr", "fast", [f"{PAPER}.lr", "found 'fast'"]),
    (f"{PAPER}.lr", True, [f"{PAPER}.lr", "found True"]),
    (f"{PAPER}.epochs", 10.5, [f"{PAPER}.epochs", "integer", "found 10.5"]),
    (f"{PAPER}.epochs", "10", [f"{PAPER}.epochs", "integer", "found '10'"]),
    (f"{PAPER}.epochs", True, [f"{PAPER}.epochs", "integer", "found True"]),
    (f"{PAPER}.epochs", None, [f"{PAPER}.epochs", "integer", "found None"]),
    ("seeds", 0, ["seeds", "list", "found 0"]),
    ("seeds", ["0"], ["seeds.0", "integer", "found '0'"]),
    ("benchmarks.cub.trial", 0, ["benchmarks.cub.trial", "bool", "found 0"]),
    ("benchmarks.cub.overrides", [], ["benchmarks.cub.overrides", "expected a section, found []"]),
    ("benchmarks.cub", "cub", ["benchmarks.cub", "found 'cub'"]),
    ("backbones.dino_vitb16.mean", [0.5, 0.5], ["backbones.dino_vitb16.mean", "3"]),
    # what YAML 1.1 makes of 1e-3
    (f"{PAPER}.lr_floor", yaml.safe_load("1e-3"), [f"{PAPER}.lr_floor", "number", "found '1e-3'", "as in 1.0e-3"]),
    # not finite
    (f"{PAPER}.lr", math.nan, [f"{PAPER}.lr", "finite", "found nan"]),
    (f"{PAPER}.lr", math.inf, [f"{PAPER}.lr", "finite", "found inf"]),
    ("methods.full.delta", yaml.safe_load(".inf"), ["methods.full.delta", "finite", "found inf"]),
    ("sensitivity.lambda_n", [0.1, math.nan], ["sensitivity.lambda_n.1", "finite", "found nan"]),
    # out of range
    ("methods.full.lambda_n", -0.1, ["methods.full.lambda_n", "greater than or equal to 0", "found -0.1"]),
    ("methods.full.lambda_c", -0.1, ["methods.full.lambda_c", "greater than or equal to 0", "found -0.1"]),
    (
        "benchmarks.cub.methods.simgcd.entropy_weight",
        -1.0,
        ["benchmarks.cub.methods.simgcd.entropy_weight", "greater than or equal to 0"],
    ),
    (f"{PAPER}.weight_decay", -1.0e-4, [f"{PAPER}.weight_decay", "greater than or equal to 0"]),
    ("methods.gcd.supervised_weight", 1.5, ["methods.gcd.supervised_weight", "less than or equal to 1"]),
    (f"{PAPER}.momentum", 1.0, [f"{PAPER}.momentum", "less than 1"]),
    (f"{PAPER}.lr", 0.0, [f"{PAPER}.lr", "greater than 0"]),
    ("methods.simgcd.student_temperature", 0, ["methods.simgcd.student_temperature", "greater than 0"]),
    (f"{PAPER}.threads", 0, [f"{PAPER}.threads", "greater than or equal to 1"]),
    ("methods.full.tau", 0.0, ["methods.full.tau", "greater than 0"]),
    ("methods.full.k", 1, ["methods.full.k", "greater than or equal to 2"]),
    ("methods.full.reciprocal", "data", ["methods.full.reciprocal", "'batch'", "'dataset'", "found 'data'"]),
    ("methods.simgcd.teacher_schedule", "step", ["methods.simgcd.teacher_schedule", "'linear'", "'cosine'"]),
    ("split.labelled_share", 1.0, ["split.labelled_share", "less than 1"]),
    ("split.seed", -1, ["split.seed", "greater than or equal to 0"]),
    ("rows.main", [], ["rows.main", "at least 1"]),
    ("seeds", [], ["seeds", "at least 1"]),
    # twice
    ("rows.main", ["simgcd", "simgcd", "kmeans"], ["rows.main is ['simgcd', 'simgcd', 'kmeans']; list each once"]),
    ("rows.ablation", ["full-paper", "gcd", "gcd"], ["rows.ablation is [", "each once"]),
    ("sensitivity.lambda_n", [0.1, 0.2, 0.1], ["sensitivity.lambda_n is [0.1, 0.2, 0.1]", "each once"]),
    ("sensitivity.lambda_c", [1, 1.0], ["sensitivity.lambda_c is [1.0, 1.0]", "each once"]),
    ("sensitivity.k", [10, 20, 10], ["sensitivity.k is [10, 20, 10]", "each once"]),
    ("all_tables.main", ["main_ssb", "main_ssb"], ["all_tables.main is [", "each once"]),
    ("all_tables.ablation", ["cub", "cub"], ["all_tables.ablation is [", "each once"]),
    ("tables.main_ssb", ["cub", "cub"], ["tables.main_ssb", "each once"]),
    ("seeds_of.cub50.main", [3, 3], ["seeds_of.cub50.main are [3, 3]", "different"]),
    ("seeds", [0, 0], ["seeds are [0, 0]", "different"]),
    ("seeds", [0, -1], ["seeds are [0, -1]", "integers from 0"]),
    ("schema", 1, ["schema is 1", "reads schema 3", "update the file as in docs/migration.md"]),
    ("schema", 4, ["schema is 4", "reads schema 3", "install a newer version"]),
    ("schema", "2", ["schema: input should be a valid integer"]),
    (f"{PAPER}.loss_group", -1, [f"{PAPER}.loss_group", "greater than or equal to 0"]),
    # possible separately, but not together
    *(
        (
            f"{PAPER}.loss_group",
            group,
            [f"loss_group {group} does not divide batch_size 128", "or 0 for the whole batch"],
        )
        for group in (1, 100, 256)
    ),
    (f"{PAPER}.crop", 300, [PAPER, "crop 300 is larger than resize 256", "give"]),
    # unknown names
    (
        "benchmarks.cub.protocol",
        "oficial",
        ["benchmarks.cub.protocol: unknown protocol 'oficial'", "did you mean 'official'?"],
    ),
    (f"{PAPER}.backbone", "dino_vitb", [f"{PAPER}.backbone: unknown backbone", "did you mean 'dino_vitb16'?"]),
    ("tables.main_ssb", ["cub", "car"], ["tables.main_ssb: unknown benchmark 'car'", "did you mean 'scars'?"]),
    ("tables.ssb", ["cub"], ["tables.ssb", "call it 'main_ssb'"]),
    ("all_tables.main", ["main_sb"], ["all_tables.main: unknown table 'main_sb'", "did you mean 'main_ssb'?"]),
    ("all_tables.ablation", ["cubb"], ["all_tables", "unknown benchmark 'cubb'", "did you mean 'cub'?"]),
    ("all_tables.sensitivity", ["cifar"], ["all_tables", "unknown benchmark 'cifar'", "did you mean 'cifar10"]),
    ("benchmarks.cub.overrides", {"lrr": 1.0}, ["benchmarks.cub.overrides: unknown key 'lrr'", "did you mean 'lr'?"]),
    ("benchmarks.cub.settings", {"script": {}}, ["benchmarks.cub.settings", "did you mean 'scripts'?"]),
    (
        "benchmarks.cub.settings",
        {"scripts": {"full": {"kk": 8}}},
        ["benchmarks.cub.settings.scripts.full: unknown key 'kk'"],
    ),
    ("settings.default", DELETE, ["settings", "'default'"]),
]


@pytest.mark.parametrize(("place", "value", "words"), CASES, ids=[f"{c[0]}={c[1]}" for c in CASES])
def test_refused(committed: dict[str, Any], place: str, value: Any, words: list[str]) -> None:
    change(committed, place, value)
    with pytest.raises(UserError) as raised:
        parse(committed)
    sentence = str(raised.value)
    assert sentence.startswith("params.yaml: ")
    assert "\n" not in sentence
    assert not [word for word in words if word not in sentence], sentence
    assert raised.value.__suppress_context__  # no pydantic trace below the sentence


def test_each_error_is_reported(committed: dict[str, Any]) -> None:
    """Errors in sections of methods are reported if the rest is valid."""
    change(committed, "methods.full.k", "ten")
    change(committed, "methods.gcd.head_dim", 0)  # `stated` and benchmarks change other values of it
    change(committed, "settings.scripts", {"full": {"tau": -1.0}})
    change(committed, "benchmarks.cub.settings", {"scripts": {"full": {"delta": -1.0}}})
    with pytest.raises(UserError) as raised:
        parse(committed)
    for place in (
        *("methods.full.k", "methods.gcd.head_dim", "settings.scripts.full.tau"),
        "benchmarks.cub.settings.scripts.full.delta",
    ):
        assert str(raised.value).count(f"params.yaml: {place}: ") == 1
    assert str(raised.value).count("params.yaml: ") == 4  # not repeated where other values of the section differ
    change(committed, f"{PAPER}.lr", -1.0)
    change(committed, "split.seed", -1)
    with pytest.raises(UserError, match=r"split\.seed.*; .*protocols\.official\.lr"):
        parse(committed)


def test_integers_are_accepted_as_floats(committed: dict[str, Any]) -> None:
    change(committed, f"{PAPER}.lr", 1)
    change(committed, "methods.full.lambda_n", 0)
    found = parse(committed)
    assert found.protocols["official"].lr == 1.0
    assert resolve(found, "cub", "full-paper", 0)["lambda_n"] == 0.0


def test_sections_do_not_change(params: Params) -> None:
    with pytest.raises(ValueError, match="frozen"):
        params.protocols["official"].lr = 0.2


def parts_of(annotation: Any) -> list[Any]:
    """Return all types inside an annotation, at any depth."""
    return [annotation, *(part for inner in getattr(annotation, "__args__", ()) for part in parts_of(inner))]


# These defaults keep the earlier behaviour and are not part of identities, so they must never change.
WITH_DEFAULTS = {"Protocol.tail": "blocks", "Protocol.loss_group": 0, "SimGCDValues.new_by": "classifier"}
WITH_DEFAULTS |= {"FullValues.neighbour_lists": "paper", "Backbone.blocks": 0}
WITH_DEFAULTS |= {
    f"{of}Values.{name}": 1.0
    for of in ("GCD", "SimGCD", "XCon", "DCCL", "PromptCAL")
    for name in ("info_nce_weight", "sup_con_weight")
}


def test_fields_with_a_default_are_few_and_written(committed: dict[str, Any]) -> None:
    sections, seen, found = [Params, *(entry.values for entry in METHODS.values())], set(), {}
    while sections:
        model = sections.pop()
        seen.add(model.__name__)
        for name, field in model.model_fields.items():
            if not field.is_required():
                found[f"{model.__name__}.{name}"] = field.default
            sections += [kind for kind in parts_of(field.annotation) if hasattr(kind, "model_fields")]
    assert {"Protocol", "FullValues", "Official", "Own", "Backbone", "Images", "Rows"} <= seen
    assert found == WITH_DEFAULTS
    for protocol in committed["protocols"].values():
        assert {"tail", "loss_group"} <= protocol.keys()
    assert all("blocks" in backbone for backbone in committed["backbones"].values())
    for method in ("gcd", "simgcd", "xcon", "dccl", "promptcal"):
        assert {"info_nce_weight", "sup_con_weight"} <= committed["methods"][method].keys()
    assert "new_by" in committed["methods"]["simgcd"]
    assert "neighbour_lists" in committed["methods"]["full"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1", "not valid YAML"), ("- a\n", "params.yaml"), ("", "params.yaml"), (None, "does not exist")],
)
def test_unreadable_files(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "params.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_a_script_prints_only_the_message(committed: dict[str, Any]) -> None:
    """A wrong value prints one line on stderr, with exit status 2."""
    change(committed, f"{PAPER}.crop", 300)
    script = "import json, sys\nfrom ctxgcd.config import parse\nfrom ctxgcd.utils.reporting import reported\n"
    script += "with reported():\n    parse(json.loads(sys.stdin.read()))\n"
    call = [sys.executable, "-c", script]
    done = subprocess.run(call, input=json.dumps(committed), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: params.yaml: protocols.official: crop 300 is larger than resize 256")


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("seeds: [0]\nrows:\n  main: [a]\n  main: [b]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"params.yaml line 4: duplicate key 'main'"):
        check_file(path)
    for text in ("", "null\n", "- seeds\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"params.yaml has no sections; restore it"):
            check_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        check_file(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("tables", "main_fashion", [], "list at least one benchmark"),
        ("tables", "main_fashion", ["fashion", "fashion"], "each once"),
        ("tables", "main_fashion-x", ["fashion"], "letters, digits and _"),
    ],
)
def test_impossible_tables(committed: dict[str, Any], section: str, key: str, value: Any, words: str) -> None:
    committed[section][key] = value
    with pytest.raises(UserError, match=words):
        parse(committed)


def test_impossible_values(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["fashion"]["overrides"] = {"backbone": "nope"}
    with pytest.raises(UserError, match="unknown backbone 'nope'"):
        parse(committed)
    committed["benchmarks"]["fashion"]["overrides"] = {}
    committed["backbones"]["dino_vitb16"]["std"] = [0.0, 0.5, 0.5]
    with pytest.raises(UserError, match="greater than 0"):
        parse(committed)
