"""Progress of a task: lines in a file, a bar on a terminal."""

from __future__ import annotations

import sys
import time

from ctxgcd.utils.terminal import bar

EVERY = 2.0  # seconds between two lines
MB = 1_000_000


class Progress:
    """Prints the progress of a task, its rate and the time left: one line at most every two seconds, and the last one.

    On a terminal, each line overwrites the previous one.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: str = "images",
        done: int = 0,
        scale: int = 1,
        after: float = 0.0,
    ) -> None:
        """Count from `done` to `total` (None: unknown); amounts are divided by `scale` and printed in `unit`.

        after: seconds before the first line; a shorter task prints nothing.
        """
        self.what, self.total, self.unit, self.done, self.scale, self.after = what, total, unit, done, scale, after
        self.first = done
        self.started = self.shown = time.monotonic()
        self.drawn = False

    def add(self, amount: int = 1) -> None:
        """Count `amount` more."""
        self.done += amount
        now = time.monotonic()
        if now - self.started >= self.after and (now - self.shown >= EVERY or self.done == self.total):
            self.shown = now
            line = self._line((self.done - self.first) / max(now - self.started, 1e-9))
            if self.total and sys.stdout.isatty():
                print(bar(self.done / self.total, line, again=self.drawn), flush=True)
                self.drawn = True
            else:
                print(f"  {line}", flush=True)

    def _line(self, rate: float) -> str:
        digits = 0 if self.scale == 1 else 1
        line = f"{self.what}: {self.done / self.scale:,.{digits}f}"
        speed = f"{self.unit}, {rate / self.scale:,.{digits}f} {self.unit}/s"
        if self.total is None:
            return f"{line} {speed}"
        left = round((self.total - self.done) / max(rate, 1e-9))
        hours, minutes = divmod(left // 60, 60)
        clock = f"{hours}:{minutes:02d}:{left % 60:02d}" if hours else f"{minutes}:{left % 60:02d}"
        return f"{line} of {self.total / self.scale:,.{digits}f} {speed}, {clock} left"
