"""The one exception for a user's mistake, and how a command reports it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from ctxgcd.stopping import STOPPED, stoppable
from ctxgcd.terminal import RED, styled


class UserError(Exception):
    """A mistake in the input: what is wrong, where, what was expected, what to do, in one sentence."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the valid word closest to `word`, or an empty string."""
    match = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


@contextmanager
def reported(job: bool = True) -> Iterator[None]:
    """Turn a UserError into one line on stderr and exit status 2; anything else is a bug and keeps its traceback.

    In a job SIGTERM, Ctrl-C and the end of the snakemake that started it are one line too, with exit status 130.
    """
    try:
        with stoppable() if job else nullcontext():
            yield
    except UserError as error:
        print(f"{styled('error:', RED, sys.stderr)} {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr, flush=True)
        sys.exit(130)
