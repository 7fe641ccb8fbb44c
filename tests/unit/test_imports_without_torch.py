"""Modules that the workflow reads at every start import no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.places import ROOT


@pytest.mark.parametrize(
    "module",
    [
        *(
            "ctxgcd.names",
            "ctxgcd.config",
            "ctxgcd.pipeline.runs",
            "ctxgcd.plan",
            "ctxgcd.errors",
            "ctxgcd.utils.files",
        ),
        *("ctxgcd.benchmarks.readers.registry", "ctxgcd.benchmarks.check", "ctxgcd.benchmarks.split"),
        *("ctxgcd.evaluation.score_run", "ctxgcd.tables.make"),
    ],
)
def test_modules_import_no_torch(module: str) -> None:
    heavy = "{'torch', 'torchvision', 'timm', 'lightning_fabric', 'lightning'}"
    script = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
