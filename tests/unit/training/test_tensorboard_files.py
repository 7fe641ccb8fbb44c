"""TensorBoard files: optional, with each epoch once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ctxgcd.errors import UserError
from tests.helpers.training import IMAGES, SIMGCD, trained, training


def test_tensorboard_shows_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a training that was interrupted after a checkpoint and before the end of the next epoch."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("CTXGCD_TENSORBOARD", str(tmp_path / "board"))
    broken, _ = training(tmp_path, SIMGCD, stop_at=2 * (IMAGES // 8) + 3)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    made, _ = training(tmp_path, SIMGCD)
    made.train()
    shown = EventAccumulator(str(tmp_path / "board/made-up"))
    shown.Reload()
    assert set(shown.Tags()["scalars"]) == set(made.row.method.columns()) - {"epoch"}
    for name in shown.Tags()["scalars"]:
        events = shown.Scalars(name)
        assert [event.step for event in events] == [0, 1, 2, 3, 4]
        assert [event.value for event in events] == pytest.approx([row[name] for row in made.row.history], rel=1e-6)


def test_tensorboard_is_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "a", "last.pt", **SIMGCD)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["last.pt", "last_history.csv"]
    monkeypatch.setenv("CTXGCD_TENSORBOARD", str(tmp_path / "board"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    made, recorder = training(tmp_path / "b", SIMGCD)
    with pytest.raises(UserError, match="TensorBoard is not installed; run `pip install tensorboard` or unset"):
        made.train()
    assert not recorder.calls
    assert not (tmp_path / "board").exists()
