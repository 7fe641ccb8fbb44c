"""Declare that changed modules compute the same results as before, so that no result is made again."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ctxgcd.errors import UserError, nearest
from ctxgcd.names import counted
from ctxgcd.pipeline import code
from ctxgcd.pipeline.equality import FILE, declare
from ctxgcd.pipeline.why import changed_code
from ctxgcd.utils.reporting import reported

ASK = """import json
from ctxgcd.pipeline import code
print(json.dumps({step: dict(code.reached(*roots).modules) for step, roots in code.steps().items()}))"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="HEAD", help="revision whose results stay valid; default: HEAD")
    parser.add_argument("--reason", required=True, help="why the change does not change results, in one line")
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="only these modules")
    parser.add_argument(
        "parts", nargs="*", metavar="NEW=OLD", help="a new module and the old module that it replaces partly"
    )
    arguments = parser.parse_args()
    if not arguments.reason.strip() or "\n" in arguments.reason:
        raise UserError("--reason is empty or has several lines; give one line on why the change keeps all results")
    named = [*(arguments.only or ()), *arguments.parts]  # --only also takes NEW=OLD arguments after it
    only = [word for word in arguments.only or () if "=" not in word]
    words = [word for word in named if word not in only]
    if wrong := [word for word in words if word.count("=") != 1]:
        raise UserError(
            f"{wrong[0]!r} is not NEW=OLD; write the new module and the old one, as ctxgcd.a.new=ctxgcd.a.old"
        )
    new, parts = code.modules(), dict(word.split("=") for word in words)
    for name in [*only, *parts]:
        if name in code.WITHOUT_NUMBERS:
            raise UserError(f"{name} does not belong to the code of any step ({code.WITHOUT_NUMBERS[name]}); remove it")
    if unknown := sorted(set(only) - set(new)):
        raise UserError(
            f"unknown module '{unknown[0]}'{nearest(unknown[0], new)}; write names such as ctxgcd.losses.entropy"
        )
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder)
        _extract(arguments.since, before)
        old = code.modules(before)
        changed = [name for name in new if new[name] != old.get(name)]
        hint = "if the change is committed, give the revision before it, as --since HEAD~1"
        if not changed:
            raise UserError(f"no module differs from {arguments.since}; {hint}")
        if same := [name for name in only if name not in changed]:
            raise UserError(f"{same[0]} does not differ from {arguments.since}; remove it, or {hint}")
        steps = {step: code.reached(*roots) for step, roots in code.steps().items()}
        wanted = {name for of in steps.values() for name in of.modules} if arguments.only is None else set(only)
        kept = {name: digest for name, digest in new.items() if name in wanted or name in parts}
        if declared := declare(old, kept, parts, arguments.reason):
            print(f"{counted(len(declared), 'module')} declared equal: {', '.join(declared)}")
            print(f"commit {FILE.relative_to(code.ROOT)} with the change")
        else:
            print("nothing to declare: each changed module is new, in no step, or already declared equal")
        made_by = _steps(before)
        differ = {step: why for step, of in steps.items() if (why := _difference(made_by.get(step), of))}
        print(
            f"steps whose code still differs from {arguments.since}:" if differ else "the code of every step is equal"
        )
        for step, why in differ.items():
            print(f"  {step}: {why}")


def _steps(folder: Path) -> dict[str, dict[str, str]]:
    """Return the digests of the modules of each step, computed by another checkout's code; empty for an old version."""
    words = [sys.executable, "-c", ASK]
    done = subprocess.run(words, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True)
    return {} if done.returncode else json.loads(done.stdout)


def _difference(before: dict[str, str] | None, now: code.Code) -> str:
    """Return a description of the modules in which a step differs; empty if its code is equal."""
    if before is None:
        return "a new step"
    return changed_code({"modules": before}, now.modules) if code.hash_of(before.values()) != now.hash else ""


def _extract(revision: str, folder: Path) -> None:
    """Write a revision's code to a folder."""
    if not shutil.which("git"):
        raise UserError("git is not installed, but needed to read the code before the change; install it")
    packed = subprocess.run(["git", "archive", revision, "ctxgcd", "workflow"], cwd=code.ROOT, capture_output=True)
    if packed.returncode:
        raise UserError(f"unknown revision '{revision}': {packed.stderr.decode().strip()}; give a revision of this git")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


if __name__ == "__main__":
    with reported():
        main()
