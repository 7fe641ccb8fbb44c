"""The identity of a run contains exactly the values that it reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.config import Params, parse
from ctxgcd.pipeline.identity import content_hash, identity, read_estimate
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.params import edited
from tests.helpers.refusals import error_of

OF_IMAGES = {
    *("split.seed", "split.labelled_share", "benchmarks.cub.classes", "backbones.dino_vitb16.mean"),
    *("backbones.dino_vitb16.std", "backbones.dino_vitb16.model", "backbones.dino_vitb16.weights"),
    *(
        "protocols.official.backbone",
        "protocols.official.resize",
        "protocols.official.crop",
        "protocols.official.threads",
    ),
}


OF_BASELINE = {
    *("protocols.official.tail_blocks", "protocols.official.tail_lr_factor", "protocols.official.view_bank"),
    *("methods.simgcd.projector_width", "methods.simgcd.projection_dim", "protocols.official.epochs"),
    *(
        "protocols.official.batch_size",
        "protocols.official.lr",
        "protocols.official.lr_floor",
        "protocols.official.momentum",
    ),
    *("protocols.official.weight_decay", "methods.simgcd.supervised_weight", "methods.simgcd.student_temperature"),
    *("methods.simgcd.teacher_temperature_start", "methods.simgcd.teacher_temperature_end"),
    *("methods.simgcd.teacher_warmup_epochs", "benchmarks.cub.methods.simgcd.entropy_weight"),
    *("methods.simgcd.info_nce_temperature", "methods.simgcd.sup_con_temperature", "methods.simgcd.teacher_schedule"),
}


OF_CONTEXT = {
    *("methods.full.T_warm", "methods.full.k", "methods.full.context_delay", "methods.full.neighbour_images"),
    *("methods.full.reciprocal", "methods.full.tau", "methods.full.lambda_c"),
    *("methods.full.lambda_n", "methods.full.delta"),
}


OTHER: dict[str, Any] = {
    **{"split.seed": 1, "split.labelled_share": 0.4, "benchmarks.cub.classes": 150},
    **{"backbones.dino_vitb16.mean": [0.5, 0.5, 0.5], "backbones.dino_vitb16.std": [0.5, 0.5, 0.5]},
    **{"backbones.dino_vitb16.model": "vit_base_patch16_224", "backbones.dino_vitb16.weights": "hub"},
    **{
        "protocols.official.backbone": "efficientnet_lite0",
        "protocols.official.resize": 260,
        "protocols.official.crop": 192,
    },
    **{"protocols.official.threads": 2, "methods.kmeans.restarts": 3, "protocols.official.tail_blocks": 2},
    **{
        "protocols.official.tail_lr_factor": 0.5,
        "protocols.official.view_bank": 4,
        "protocols.official.view_bank_seed": 1,
    },
    **{"methods.simgcd.projector_width": 512, "methods.simgcd.projection_dim": 64, "protocols.official.epochs": 190},
    **{"methods.full.T_warm": 40, "protocols.official.batch_size": 64, "protocols.official.lr": 0.2},
    **{"protocols.official.lr_floor": 0.1, "protocols.official.momentum": 0.8, "protocols.official.weight_decay": 0.0},
    **{"methods.simgcd.supervised_weight": 0.5, "methods.simgcd.student_temperature": 0.2},
    **{"methods.simgcd.teacher_temperature_start": 0.08, "methods.simgcd.teacher_temperature_end": 0.05},
    **{"methods.simgcd.teacher_warmup_epochs": 20, "benchmarks.cub.methods.simgcd.entropy_weight": 1.5},
    **{"methods.full.k": 8, "methods.full.lambda_n": 0.2, "methods.full.lambda_c": 0.2},
    **{"methods.full.context_delay": 1, "methods.full.neighbour_images": 64, "methods.full.delta": 2.0},
    **{"methods.full.reciprocal": "dataset", "methods.full.tau": 0.1, "methods.simgcd.teacher_schedule": "cosine"},
    **{"methods.simgcd.info_nce_temperature": 0.5, "methods.simgcd.sup_con_temperature": 0.1},
    # of these no run of `paper` values depends
    **{
        "settings.scripts.full.lambda_c": 0.5,
        "protocols.fashion.lr": 0.5,
        "benchmarks.cub50.methods.simgcd.teacher_warmup_epochs": 7,
    },
    **{
        "benchmarks.cub.folder": "birds",
        "benchmarks.cub.images": {"train": 7000, "test": 1},
    },
    **{"backbones.dino_vitb16.note": "seen", "seeds": [0, 1, 2, 3], "sensitivity.k": [10], "rows.main": ["simgcd"]},
    **{"all_tables.ablation": [], "tables.main_ssb": ["cub"]},
}


@pytest.mark.parametrize(
    ("row", "reads"),
    [
        ("kmeans", OF_IMAGES | {"methods.kmeans.restarts"}),
        ("simgcd", OF_IMAGES | OF_BASELINE),
        ("full-paper", OF_IMAGES | OF_BASELINE | OF_CONTEXT),
        ("full-mended", OF_IMAGES | OF_BASELINE | OF_CONTEXT),
    ],
)
def test_identity_holds_exactly_what_is_read(committed: dict[str, Any], row: str, reads: set[str]) -> None:
    before = identity(resolve(parse(committed), "cub", row, 0))
    changed = set()
    for place, value in OTHER.items():
        *above, last = place.split(".")
        section = committed
        for part in above:
            section = section[part]
        assert section[last] != value, place
        kept, section[last] = section[last], value
        if identity(resolve(parse(committed), "cub", row, 0)) != before:
            changed.add(place)
        section[last] = kept
    assert changed == reads
    assert reads < set(OTHER)


@pytest.mark.parametrize(
    ("row", "unread"), [("full-paper-without-n", "lambda_n"), ("full-paper-without-c", "lambda_c")]
)
def test_the_weight_of_an_ablated_term_is_not_part_of_the_identity(
    committed: dict[str, Any], row: str, unread: str
) -> None:
    before = identity(resolve(parse(committed), "cub", row, 0))
    assert identity(resolve(edited(committed, f"methods.full.{unread}", 0.9), "cub", row, 0)) == before


def test_identity_does_not_depend_on_the_name_of_the_row(params: Params) -> None:
    def of(row: str) -> str:
        return identity(resolve(params, "cub", row, 0))

    assert of("full-paper") == of("full-paper+lambda_n=0.1") == of("full-paper+settings=default")
    assert of("full-paper+lambda_n=1e-05") == of("full-paper+lambda_n=0.00001")
    rows = ["simgcd", "kmeans", "full-paper", "full-mended", "full-released", "full-paper-zero"]
    rows += ["full-paper-without-n", "full-paper-without-c", "full-paper+lambda_n=0.3", "full-paper+lambda_c=0.5"]
    assert len({of(row) for row in rows}) == len(rows)


def test_identity_depends_on_split_and_code(params: Params) -> None:
    parameters = resolve(params, "cub", "simgcd", 0)
    found = {identity(parameters), identity(parameters, "a"), identity(parameters, "", "a"), identity(parameters, "b")}
    assert len(found) == 4
    assert all(re.fullmatch(r"[0-9a-f]{16}", own) for own in found)
    shuffled = dict(reversed(parameters.items()))
    assert identity(shuffled) == identity(parameters)


def test_identity_of_local_weights_is_their_content(committed: dict[str, Any], tmp_path: Path) -> None:
    def own(path: Path) -> str:
        params = edited(committed, "backbones.dino_vitb16", {**dino, "weights": str(path), "sha256": ""})
        return identity(resolve(params, "cub", "simgcd", 0))

    dino = committed["backbones"]["dino_vitb16"]

    first, second, third = (tmp_path / name for name in ("a.pth", "b.pth", "c.pth"))
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    third.write_bytes(b"Weights")
    assert own(first) == own(second) != own(third)
    first.write_bytes(b"weightS")
    assert own(first) != own(second)
    assert str(tmp_path) not in str(resolve(parse(committed), "cub", "simgcd", 0))


def test_an_estimate_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "cub50.json"
    file.write_text('{"K": 61}')
    assert read_estimate(file) == 61
    for text in (
        "",
        "{}",
        "[]",
        '{"K": null}',
        '{"K": 1e400}',
        '{"K": true}',
        '{"K": 3.9}',
        '{"K": -5}',
        '{"K": "12"}',
    ):
        file.write_text(text)
        assert "delete it and run the same command again" in error_of(lambda: read_estimate(file))
    assert "none.json cannot be read" in error_of(lambda: read_estimate(tmp_path / "none.json"))


def test_a_content_hash_is_stable_and_independent_of_the_order_of_keys() -> None:
    """It is part of the names of caches, so another value would make them again."""
    assert content_hash([{"b": 1, "a": ["x", 2.5]}, None]) == "5232b6f47285ed48"
    assert content_hash([{"a": ["x", 2.5], "b": 1}, None]) == "5232b6f47285ed48"
    assert content_hash([{"a": [2.5, "x"], "b": 1}, None]) != "5232b6f47285ed48"
