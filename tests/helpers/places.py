"""Paths: the project's root, the environment's programs, data next to a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
SHARED = ROOT.parent / "shared" / "data"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # with which a process imports the package of this checkout
