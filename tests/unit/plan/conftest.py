"""Parameters of a small demo, for the plan and its sizes."""

from __future__ import annotations

from typing import Any

import pytest

from ctxgcd.config import Params, parse


def shortened(committed: dict[str, Any], **protocol: Any) -> Params:
    """Return params.yaml with 8 epochs of fashion, these values of its protocol, and context terms from epoch 2."""
    committed["protocols"]["fashion"] |= {"tail": "blocks", "epochs": 8, **protocol}
    methods = committed["benchmarks"]["fashion"]["methods"]
    methods["simgcd"]["teacher_warmup_epochs"] = 3
    methods["full"] |= {"T_warm": 2, "neighbour_images": 64}
    committed["rows_of"] = {}
    del committed["seeds_of"]["fashion"]
    return parse(committed)


@pytest.fixture
def demo(committed: dict[str, Any]) -> Params:
    """params.yaml with other values for fashion: the last convolution is trained, in few epochs."""
    return shortened(committed, resize=73, crop=64, view_bank=4)
