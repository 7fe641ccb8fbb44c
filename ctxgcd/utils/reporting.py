"""How a command ends: what it prints for a user's mistake, an interruption, and its exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ctxgcd.errors import UserError
from ctxgcd.utils.signals import STOPPED, stoppable
from ctxgcd.utils.terminal import RED, styled


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
