"""The devices of a training, with simulated CUDA and real locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.training import device_locks, devices
from ctxgcd.training.devices import borrowed_devices

CARDS = ("GPU-a", "GPU-b", "GPU-c")  # of the host; a process sees some of them, numbered from 0


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def visible() -> list[str]:
        return [CARDS[int(number)] for number in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]

    @contextmanager
    def borrowed(names: list[str], count: int) -> Iterator[Any]:
        with device_locks.borrowed(names, count, tmp_path / "locks", wait=0.01) as held:
            yield held

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible()))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=visible()[number]))
    monkeypatch.setattr(devices, "borrowed", borrowed)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_only_the_devices_set_by_a_queue_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with borrowed_devices(1) as held:
        assert held == [torch.device("cuda", 0)]  # the first of those that are visible
    with pytest.raises(UserError, match="2 devices are requested, but only 1 are visible"), borrowed_devices(2):
        pass


def test_without_cuda_a_host_has_at_least_as_many_cores_as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 2)
    with borrowed_devices(2) as held:
        assert held == [torch.device("cpu")] * 2
    with pytest.raises(UserError, match="3 processes are requested, but the cores of this host are 2; request fewer"):
        borrowed_devices(3).__enter__()


def test_a_device_is_identified_by_its_uuid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In SLURM, two jobs may see two devices as number 0, or one device under two numbers."""
    with borrowed_devices(1):  # GPU-a
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        with borrowed_devices(1) as other:  # GPU-b, at once
            assert other == [torch.device("cuda", 0)]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
        with borrowed_devices(1) as held:  # GPU-a is taken under its other number too
            assert held == [torch.device("cuda", 0)]
            assert sorted(file.name for file in (tmp_path / "locks").iterdir()) == ["GPU-a.lock", "GPU-b.lock"]


def test_started_processes_get_the_locked_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with borrowed_devices(2) as held:
        monkeypatch.setenv("LOCAL_RANK", "1")
        with borrowed_devices(2) as devices:
            assert devices == held == [torch.device("cuda", 0), torch.device("cuda", 1)]
