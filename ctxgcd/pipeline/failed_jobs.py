"""Repeats the error messages of failed jobs at the end of Snakemake's output."""

from __future__ import annotations

import atexit
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ctxgcd.utils.signals import STOPPED, stop_requested

LOG_OF_A_FAILED_JOB = re.compile(r"^ +log: (\S+) \(check log", re.MULTILINE)


def repeat_errors(snakemake_logs: Iterable[str]) -> None:
    """Print the error messages of failed jobs, without duplicates, when this process ends.

    snakemake_logs: Snakemake's log files of this call, which name the logs of failed jobs.
    """
    logs = [log for file in snakemake_logs for log in LOG_OF_A_FAILED_JOB.findall(_read(file))]
    errors = [line for log in logs for line in _read(log).splitlines() if line.startswith("error:")]
    sentences = [STOPPED] if stop_requested() else list(dict.fromkeys(errors))
    if sentences:
        atexit.register(print, "", *sentences, sep="\n", file=sys.stderr)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
