"""Checkpoints of a training: resumed, damaged, diverged, and locked by one process."""

from __future__ import annotations

import math
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.methods.step import Batch, Losses
from ctxgcd.models.network import Network
from ctxgcd.training import checkpoint
from ctxgcd.utils.signals import SIGNALS, stoppable
from tests.helpers.places import ROOT
from tests.helpers.training import IMAGES, SIMGCD, TEST, equal, trained, training

torch.set_num_threads(1)


@pytest.mark.parametrize("changes", [SIMGCD, {}, {"variant": "released"}, {"variant": "mended"}], ids=str)
@pytest.mark.parametrize("epochs_done", [0, 1, 3])
def test_resumed_is_uninterrupted(tmp_path: Path, changes: dict[str, Any], epochs_done: int) -> None:
    whole, recorder = trained(tmp_path, "whole.pt", **changes)
    with_context = changes.get("method") != "simgcd"
    steps = IMAGES // 8
    calls = sum(steps * (2 if with_context and epoch >= 2 else 1) for epoch in range(epochs_done))
    broken, _ = training(tmp_path, changes, stop_at=calls + 4)  # in the middle of the epoch
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    assert len(broken.row.history) == epochs_done
    torch.manual_seed(7)
    again, rest = training(tmp_path, changes, start=5 if epochs_done else None)
    again.train()
    assert equal(again, whole)
    assert len(rest.calls) == len(recorder.calls) - calls
    ids = torch.arange(IMAGES + TEST)
    assert torch.equal(again.features(ids), whole.features(ids))


def test_a_finished_state_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = trained(tmp_path, "a.pt")
    again, recorder = training(tmp_path, {}, start=5, name="a.pt")
    again.train()
    assert not recorder.calls
    assert equal(first, again)


def test_a_state_without_a_later_value_is_resumed(tmp_path: Path) -> None:
    """A value that was added later has a default, which a checkpoint of the earlier version lacks."""
    trained(tmp_path, "a.pt")
    file = tmp_path / "a.pt"
    state = torch.load(file, weights_only=True)
    content = {key: value for key, value in state.items() if key not in ("kind", "schema", "digest")}
    del content["parameters"]["neighbour_lists"], content["parameters"]["loss_group"]
    checkpoint.save(file, "ctxgcd-state", content)
    again, recorder = training(tmp_path, {}, start=5, name="a.pt")
    again.train()
    assert not recorder.calls
    content["parameters"]["neighbour_lists"] = "released"
    checkpoint.save(file, "ctxgcd-state", content)
    with pytest.raises(UserError, match="is the checkpoint of another run"):
        training(tmp_path, {}, start=5, name="a.pt")[0].train()


def test_state_holds_tensors_and_plain_types(tmp_path: Path) -> None:
    made, _ = trained(tmp_path, "a.pt")
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    assert (state["kind"], state["schema"]) == ("ctxgcd-state", checkpoint.SCHEMAS["ctxgcd-state"])
    assert state["parameters"] == made.row.parameters
    assert state["history"] == made.row.history
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "a_history.csv"}


WORDS = {
    **dict.fromkeys(("cut", "empty", "text"), "is damaged or was not written by ctxgcd"),
    **dict.fromkeys(("list", "other kind"), "is not a file of kind ctxgcd-state"),
    "other schema": f"has schema 99, but this version reads schema {checkpoint.SCHEMAS['ctxgcd-state']}",
    "one bit": "is damaged: its content does not match its digest",
    "of another run": "is the checkpoint of another run",
}


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    if kind == "other kind":
        checkpoint.save(path, "ctxgcd-model", {})
    elif kind == "other schema":
        torch.save({"kind": "ctxgcd-state", "schema": 99}, path)
    elif kind == "list":
        torch.save([1], path)
    elif kind == "one bit":  # of a parameter, which torch loads without an error
        parameter = checkpoint.load(path, "ctxgcd-state")["network"]["tail.weight"].numpy().tobytes()
        place = content.index(parameter)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        torch.load(path, weights_only=True)
    elif kind == "of another run":
        content = checkpoint.load(path, "ctxgcd-state")
        checkpoint.save(path, "ctxgcd-state", content | {"identity": "another"})
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"state"}[kind])


@pytest.mark.parametrize("kind", WORDS)
def test_a_damaged_state_is_refused(tmp_path: Path, kind: str) -> None:
    trained(tmp_path, "a.pt", epochs=2, **SIMGCD)
    damage(tmp_path / "a.pt", kind)
    made, _ = training(tmp_path, SIMGCD, name="a.pt")
    with pytest.raises(UserError) as raised:
        made.train()
    sentence = str(raised.value)
    assert str(tmp_path / "a.pt") in sentence
    assert "\n" not in sentence
    assert WORDS[kind] in sentence
    assert "delete it to restart the training" in sentence


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made, _ = training(tmp_path / "file", SIMGCD)
    with pytest.raises(UserError, match=r"last\.pt cannot be read or written \(.*\); check the folder"):
        made.train()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_is_reported_in_one_line_and_keeps_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    made, recorder = training(tmp_path, SIMGCD)
    own = made.row.method.losses

    def diverging(net: Network, of: Batch) -> Losses:
        found = own(net, of)
        if len(recorder.calls) == 3 * (IMAGES // 8) - 2:  # a step of epoch 2, after which no term is finite
            found = Losses({**found.terms, "cls": found.terms["cls"] * value})
        return found

    monkeypatch.setattr(made.row.method, "losses", diverging)
    with pytest.raises(
        UserError, match=r"in epoch 2 .*, so training diverged.*of epoch 1 is kept; decrease lr"
    ) as raised:
        made.train()
    assert f"in epoch 2 from step {IMAGES // 8 - 3} on (not finite there: cls)" in str(raised.value)
    assert len(checkpoint.load(made.row.state_file, "ctxgcd-state")["history"]) == 2


def test_divergence_in_the_first_epoch_names_no_epoch_before_it(tmp_path: Path) -> None:
    made, _ = training(tmp_path, {**SIMGCD, "lr": 1.0e30})
    with pytest.raises(UserError, match=r"in epoch 0 from step [0-9]+ on .*, so training diverged") as raised:
        made.train()
    assert "epoch -1" not in str(raised.value)
    assert not made.row.state_file.exists()


ME = f"process {os.getpid()} on {platform.node()} ({Path(sys.argv[0]).name})"


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    owner, other = checkpoint.owned(state), checkpoint.owned(state, patience=0.1)
    with owner, pytest.raises(checkpoint.TrainedElsewhere, match=f"^{re.escape(ME)} trains the run in {state}; wait"):
        other.__enter__()
    with checkpoint.owned(state):  # unlocked again
        assert (state / "owner").read_text() == ME
    assert [path.name for path in state.iterdir()] == ["lock"]


def test_a_process_with_patience_0_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint.owned(tmp_path), pytest.raises(checkpoint.TrainedElsewhere, match="wait until it has ended"):
        checkpoint.owned(tmp_path, patience=0).__enter__()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_process_without_a_time_limit_waits_until_the_owner_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the waiting; a killed owner ends it too."""
    script = f"""
from pathlib import Path
from ctxgcd.training.checkpoint import owned
with owned(Path({str(tmp_path)!r})):
    print("held", flush=True)
    input()
"""
    call = [sys.executable, "-c", script]
    with subprocess.Popen(call, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == b"held\n"
        monkeypatch.setattr(checkpoint, "POLL", 600.0)
        before = {number: signal.getsignal(number) for number in SIGNALS}
        Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(KeyboardInterrupt), stoppable(), checkpoint.owned(tmp_path, patience=None):
            pass
        for number, was in before.items():
            signal.signal(number, was)
        monkeypatch.undo()
        Timer(0.2, owner.kill).start()
        with checkpoint.owned(tmp_path, patience=None):
            assert owner.wait() == -signal.SIGKILL
    line = f"waiting for process {owner.pid} on {platform.node()} (-c), which trains the run in {tmp_path}\n"
    assert capsys.readouterr().out == 2 * line
