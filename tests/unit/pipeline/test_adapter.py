"""A run's parameters with an adapter: read values, refused values, and unchanged identities."""

from __future__ import annotations

from typing import Any

import pytest

from ctxgcd.config import parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import identity
from ctxgcd.pipeline.jobs import Jobs
from ctxgcd.pipeline.resolve import resolve

# Identities from before the adapter was added.
IDENTITIES = {
    ("cub", "simgcd"): "e54cdbebde00bf88",
    ("cub", "full-paper"): "bf41ad54eafb85c6",
    ("cub", "gcd"): "3c87c581a5566511",
}


@pytest.mark.parametrize(("of", "expected"), IDENTITIES.items())
def test_identities_of_older_runs_stay(committed: dict[str, Any], of: tuple[str, str], expected: str) -> None:
    params = parse(committed)
    assert identity(resolve(params, *of, 0)) == expected
    assert identity(resolve(params, of[0], f"{of[1]}+tail=blocks", 0)) == expected


def test_an_adapter_does_not_read_the_number_of_blocks(committed: dict[str, Any]) -> None:
    blocks = resolve(parse(committed), "cub", "simgcd", 0)
    own = resolve(parse(committed), "cub", "simgcd+tail=adapter", 0)
    assert {**own, "row": "simgcd"} == {k: v for k, v in blocks.items() if k != "tail_blocks"} | {"tail": "adapter"}
    committed["protocols"]["official"]["tail_blocks"] = 0
    assert resolve(parse(committed), "cub", "simgcd+tail=adapter", 0) == own
    committed["benchmarks"]["cub"]["overrides"] = {"tail": "adapter"}
    overridden = resolve(parse(committed), "cub", "simgcd", 0)
    assert overridden == {**own, "row": "simgcd"}
    assert resolve(parse(committed), "cub", "simgcd+tail=blocks+tail_blocks=1", 0)["tail_blocks"] == 1


@pytest.mark.parametrize("row", ["simgcd+tail=adapter+tail_blocks=1", "full-paper+tail_blocks=0+tail=adapter"])
def test_a_number_of_blocks_with_an_adapter_is_refused(committed: dict[str, Any], row: str) -> None:
    with pytest.raises(UserError, match="tail_blocks is not read; leave it out, or add tail=blocks") as raised:
        resolve(parse(committed), "cub", row, 0)
    assert str(raised.value).startswith(f"row '{row}': ")


def test_an_unknown_tail_and_a_method_without_one_are_refused(committed: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"'blocks' or 'adapter', found 'adaptor'"):
        resolve(parse(committed), "cub", "simgcd+tail=adaptor", 0)
    with pytest.raises(UserError, match="kmeans does not read tail"):
        resolve(parse(committed), "cub", "kmeans+tail=adapter", 0)


def test_the_context_losses_train_through_an_adapter(committed: dict[str, Any]) -> None:
    """Without blocks and adapter, the context losses are refused, because they cannot change predictions."""
    committed["protocols"]["official"]["tail_blocks"] = 0
    with pytest.raises(UserError, match="tail_blocks is 0"):
        resolve(parse(committed), "cub", "full-paper", 0)
    assert resolve(parse(committed), "cub", "full-paper+tail=adapter", 0)["tail"] == "adapter"


def test_an_adapter_reads_the_features_that_kmeans_clusters(committed: dict[str, Any]) -> None:
    of = Jobs(parse(committed))
    kept = of.inputs("cub", "simgcd+tail=adapter+view_bank=4", "0")
    assert list(kept) == ["weights", "test_view", "view_bank"]
    assert kept["test_view"] == of.inputs("cub", "kmeans", "0")["test_view"] == of.frozen_features("cub")
    assert kept["view_bank"].endswith("/view_bank-tail0-views4-seed0-bf16.npy")
    fresh = of.inputs("cub", "simgcd+tail=adapter", "0")
    assert fresh == of.inputs("cub", "simgcd", "0")
