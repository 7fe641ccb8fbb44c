"""Declared equality: maintainers declare that a changed module computes the same results as before."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ctxgcd.errors import UserError, nearest

FILE = Path(__file__).parent / "equal_code.csv"
COLUMNS = ("module", "old", "new", "reason")


@cache
def older() -> dict[str, frozenset[str]]:
    """Return the older digests that each digest is declared equal to.

    Raises UserError if the file is missing or damaged, because a skipped line would make results again.
    """
    found: dict[str, frozenset[str]] = {}
    try:
        head, *lines = csv.reader(FILE.read_text(encoding="utf-8").splitlines(), strict=True)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{FILE} cannot be read ({error}); restore it, as with `git checkout {FILE.name}`") from None
    for number, line in enumerate([head, *lines], 1):
        if (number == 1 and tuple(line) != COLUMNS) or (line and (len(line) != len(COLUMNS) or not all(line))):
            raise UserError(
                f"{FILE} line {number} is {','.join(line)!r}, but expected {','.join(COLUMNS)}; correct the line or "
                "restore the file from git"
            )
    for _, old, new, _ in filter(None, lines):
        found[new] = found.get(new, frozenset()) | {old}
    return found


@cache
def oldest(digest: str) -> frozenset[str]:
    """Return the oldest digests declared equal to a digest: itself if nothing is declared, several after a merge.

    Raises UserError if the declarations form a cycle.
    """
    found, waiting, seen = set(), [(digest, frozenset[str]())], set()
    while waiting:
        one, after = waiting.pop()
        if one in after:
            raise UserError(f"{FILE}: {one} is declared equal to itself through {len(after)} lines; delete one of them")
        if one in seen:
            continue
        seen.add(one)
        before = older().get(one, frozenset())
        waiting += [(other, after | {one}) for other in before]
        found |= set() if before else {one}
    return frozenset(found)


def check() -> None:
    """Raise UserError if the declarations cannot be read or form a cycle."""
    for digest in older():
        oldest(digest)


def declare(old: Mapping[str, str], new: Mapping[str, str], parts: Mapping[str, str], reason: str) -> list[str]:
    """Append a line for each changed module that computes the same results as before; return their names.

    Args:
        old, new: digests of modules before and after the change.
        parts: further modules, each with the old module that it replaces completely or partly.
        reason: why no result changes.

    Raises UserError for an unknown module.
    """
    pairs = [(name, name) for name in new if name in old and new[name] != old[name]] + list(parts.items())
    for name, before in pairs:
        for module, known in ((name, new), (before, old)):
            if module not in known:
                raise UserError(
                    f"unknown module '{module}'{nearest(module, known)}; write NEW=OLD with names such as "
                    "ctxgcd.utils.files"
                )
    wanted = [(name, old[before], new[name]) for name, before in pairs if not oldest(old[before]) <= oldest(new[name])]
    ends = FILE.read_text(encoding="utf-8").endswith("\n")
    with FILE.open("a", encoding="utf-8", newline="") as lines:
        lines.write("" if ends else "\n")
        csv.writer(lines, lineterminator="\n").writerows((*line, reason) for line in wanted)
    older.cache_clear()
    oldest.cache_clear()
    return [name for name, _, _ in wanted]
