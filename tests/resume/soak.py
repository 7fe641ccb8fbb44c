"""Kill and stop a demo many times at random moments, and compare its results bit for bit with an uninterrupted one."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.resume.project import STRIKES, finish, fresh_copy, quiet, results, start, strike, trainers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="at least so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=12.0, help="seconds from a training's start to a strike")
    parser.add_argument("--folder", type=Path, help="where to work, with `clean` of a former call if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        soak(arguments.folder or Path(temporary), arguments.kills, arguments.longest, random.Random(arguments.seed))


def soak(folder: Path, kills: int, longest: float, chance: random.Random) -> None:
    """Make an uninterrupted and an interrupted demo; raise AssertionError if a result differs or a process remains."""
    clean, begun = folder / "clean", time.monotonic()
    if not clean.exists():
        finish(fresh_copy(clean), "demo")
        print(f"uninterrupted: {time.monotonic() - begun:.0f} s", flush=True)
    struck = fresh_copy(folder / "struck", clean)
    done: Counter[str] = Counter()
    slowest, begun = 0.0, time.monotonic()
    while done.total() < kills:
        snakemake = start(struck, "demo")
        while snakemake.poll() is None and not trainers(struck):
            time.sleep(0.1)
        time.sleep(chance.uniform(0, longest))
        assert snakemake.poll() is None, (struck / "snakemake.log").read_text()[-4000:]
        how = chance.choice(STRIKES if trainers(struck) else STRIKES[1:])  # between two trainings there is none to kill
        strike(struck, snakemake, how)
        assert snakemake.wait(60) != 0
        slowest = max(slowest, quiet(struck, patience=60))
        finish(struck, "--unlock")
        done[how] += 1
        trained = len(list(struck.glob("results/runs/*/*/*/run.json")))
        print(f"{done.total()}: {how}, {trained} runs trained", flush=True)
    finish(struck, "demo")
    log = (struck / "snakemake.log").read_text()
    print(
        f"{done.total()} strikes in {time.monotonic() - begun:.0f} s: {dict(done)}; every process gone after at most "
        f"{slowest:.1f} s; {log.count('resumed after epoch')} trainings went on, {log.count('is already finished')} "
        f"finished ones were found again; tracebacks: {log.count('Traceback')}"
    )
    expected, found = results(clean), results(struck)
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert not different, f"{len(different)} of {len(expected)} files differ: {different[:5]}"
    assert "Nothing to be done" in finish(struck, "-n", "demo")
    print(f"all {len(expected)} files of results/ are equal, bit for bit, but for the times that runs took")


if __name__ == "__main__":
    main()
