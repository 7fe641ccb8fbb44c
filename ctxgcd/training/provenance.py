"""Provenance of results: versions, device, commit and memory."""

from __future__ import annotations

import platform
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device, package: str = "") -> dict[str, str]:
    """Return the versions of the libraries and the name of the device; package: one that the method requires."""
    cuda = {"cuda": str(torch.version.cuda)} if device.type == "cuda" else {}
    versions = {name: _version(name) for name in ("torch", "timm", "numpy", "scipy", "scikit-learn")}
    versions |= {package: _version(package)} if package else {}
    return {"python": platform.python_version(), **versions, **cuda, "device": device_name(device)}


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or `cpu: ` and the name of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu: {_processor()}"


def commit() -> str:
    """Return the commit of the package's checkout, with `-dirty` if its code differs, or `unknown` outside git."""
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
    """Return the peak resident memory of this process and, on CUDA, of the device, in MiB."""
    peak = {"peak_memory_mb": round(own_peak_memory())}
    if device.type == "cuda":
        peak["peak_device_memory_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
    return peak


def own_peak_memory() -> float:
    """Return the peak resident memory of this process in MiB.

    It is read from /proc on Linux, because getrusage also counts the memory of the parent process.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # scikit-learn is not needed for training
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
