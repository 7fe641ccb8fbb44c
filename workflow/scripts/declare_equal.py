"""Declare that changed modules compute what they computed before, so that no result is made again."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from ctxgcd.errors import UserError, reported
from ctxgcd.pipeline import code
from ctxgcd.pipeline.equality import FILE, declare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="HEAD", help="revision whose results stay valid; default: HEAD")
    parser.add_argument("--reason", required=True, help="why the change moves no number, in one line")
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="these changed modules alone")
    parser.add_argument(
        "parts", nargs="*", metavar="NEW=OLD", help="a new module and the old one of which it computes a part"
    )
    arguments = parser.parse_args()
    if not arguments.reason.strip() or "\n" in arguments.reason:
        raise UserError("the reason is empty or of several lines; say in one line why the change moves no number")
    if wrong := [word for word in arguments.parts if word.count("=") != 1]:
        raise UserError(
            f"{wrong[0]!r} is not NEW=OLD; write the new module and the old one, as ctxgcd.a.new=ctxgcd.a.old"
        )
    new, parts = code.modules(), dict(word.split("=") for word in arguments.parts)
    if unknown := sorted(set(arguments.only or ()) - set(new)):
        raise UserError(f"no module '{unknown[0]}'; write names such as ctxgcd.losses.entropy")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder)
        _extract(arguments.since, before)
        old = code.modules(before)
        kept = {name: digest for name, digest in new.items() if name in (arguments.only or new) or name in parts}
        declared = declare(old, kept, parts, arguments.reason)
        print(f"{len(declared)} modules are declared equal in {FILE.name}{': ' * bool(declared)}{', '.join(declared)}")
        differ = [step for step, roots in code.steps().items() if _hash(roots, before) != _hash(roots, code.ROOT)]
        print(
            f"steps that compute something else: {', '.join(differ)}" if differ else "no step computes something else"
        )


def _hash(roots: tuple[str, ...], root: Path) -> str:
    try:
        return code.reached(*roots, root=root).hash
    except UserError:  # a script or method that this checkout does not have
        return ""


def _extract(revision: str, folder: Path) -> None:
    """Write a revision's code to a folder."""
    packed = subprocess.run(["git", "archive", revision, "ctxgcd", "workflow"], cwd=code.ROOT, capture_output=True)
    if packed.returncode:
        raise UserError(f"git knows no revision '{revision}' of this checkout: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


if __name__ == "__main__":
    with reported():
        main()
