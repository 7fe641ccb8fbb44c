"""What a result must carry to be trusted later: versions, device, commit, memory."""

from __future__ import annotations

import platform
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device) -> dict[str, str]:
    """Versions of what computes a result, and the device's name."""
    cuda = {"cuda": str(torch.version.cuda)} if device.type == "cuda" else {}
    versions = {name: _version(name) for name in ("torch", "timm", "numpy", "scipy", "scikit-learn")}
    return {"python": platform.python_version(), **versions, **cuda, "device": device_name(device)}


def device_name(device: torch.device) -> str:
    """The card's name, or `cpu: ` and the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu: {_processor()}"


def commit() -> str:
    """The commit of this package's checkout, `-dirty` when its code differs, or `unknown` outside git."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return shown.stdout.strip()


def peak_memory_mb(device: torch.device) -> dict[str, Any]:
    """Peak resident memory of this process, and on CUDA of the device, in MiB."""
    peak = {"peak_memory_mb": round(own_peak_memory())}
    if device.type == "cuda":
        peak["peak_device_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
    return peak


def own_peak_memory() -> float:
    """Peak resident memory of this process in MiB.

    From Linux's own status where there is one: getrusage also counts what the process that started this one held.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a machine that only trains needs no scikit-learn
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
