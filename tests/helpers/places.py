"""Paths: the project's root, the environment's programs, data next to a checkout; what other processes inherit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
SHARED = ROOT.parent / "shared" / "data"
# One thread per process, because several processes run tests at once; trainings set their own number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests start hundreds of processes, and without bytecode each of them compiles the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# With which a process imports the package of this checkout.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
