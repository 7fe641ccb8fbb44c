"""Which devices a training borrows, where CUDA is made up and the locks are real."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.training.devices import borrowed_devices


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def borrowed_in_time(seconds: float = 0.5) -> Event:
    """Borrow a device beside what is held already; the event is set when it is there."""
    there = Event()

    def borrow() -> None:
        with borrowed_devices(1, wait=0.01):
            there.set()

    Thread(target=borrow, daemon=True).start()
    there.wait(seconds)
    return there


def test_a_device_has_one_owner_at_a_time() -> None:
    with borrowed_devices(1) as first, borrowed_devices(1) as second:
        assert [*first, *second] == [torch.device("cuda", 0), torch.device("cuda", 1)]
        third = borrowed_in_time()
        assert not third.is_set()
    assert third.wait(5)


def test_what_a_queue_shows_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with borrowed_devices(1) as devices:
        assert devices == [torch.device("cuda", 0)]  # the first of those that are visible
    with pytest.raises(UserError, match="2 devices are asked for, but 1 are visible"), borrowed_devices(2):
        pass


def test_jobs_of_a_queue_do_not_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM shows each of them a device of its own as number 0."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with borrowed_devices(1):
        assert not borrowed_in_time().is_set()
        monkeypatch.setenv("SLURM_JOB_ID", "8")
        assert borrowed_in_time(5).is_set()
