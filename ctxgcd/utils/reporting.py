"""The end of a command: messages for invalid input and interruptions, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ctxgcd.errors import UserError
from ctxgcd.utils.signals import STOPPED, stoppable
from ctxgcd.utils.terminal import RED, styled


@contextmanager
def reported(job: bool = True) -> Iterator[None]:
    """Print a UserError as one line on stderr and exit with status 2; any other error is a bug and keeps its traceback.

    In a job, SIGTERM, Ctrl-C and the end of the parent snakemake also print one line, with exit status 130.
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
