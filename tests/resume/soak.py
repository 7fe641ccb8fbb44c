"""Kill and stop calls many times at random moments, and compare their results bit for bit with uninterrupted ones.

The calls are those of the demo, or with --together of `snakemake together` for rows that share the trunk, which the
uninterrupted project trains one by one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml

from tests.helpers.workflow import TINY, write_weights
from tests.resume.project import STRIKES, finish, fresh_copy, quiet, results, shrink, start, strike, trainers

TABLE = "results/main_fashion.csv"
ROWS = ("gcd", "orca", "simgcd", "full-paper", "full-released", "full-mended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="at least so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=12.0, help="seconds from a training's start to a strike")
    parser.add_argument("--together", action="store_true", help="train rows together instead of making the demo")
    parser.add_argument("--folder", type=Path, help="where to work, with `clean` of a former call if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, chance = arguments.folder or Path(temporary), random.Random(arguments.seed)
        words = ["together", TABLE] if arguments.together else ["demo"]
        soak(folder, words, arguments.kills, arguments.longest, chance)


def soak(folder: Path, words: list[str], kills: int, longest: float, chance: random.Random) -> None:
    """Finish a project and interrupt calls of another; raise AssertionError if a result differs or a process remains.

    words: of the interrupted calls. The last one is the target.
    """
    clean, target, begun = folder / "clean", words[-1], time.monotonic()
    if not clean.exists():
        fresh_copy(clean)
        if "together" in words:
            share_the_trunk(clean)
        finish(clean, target)
        print(f"uninterrupted: {time.monotonic() - begun:.0f} s", flush=True)
    struck = fresh_copy(folder / "struck", clean)
    done: Counter[str] = Counter()
    slowest, begun = 0.0, time.monotonic()
    while done.total() < kills:
        snakemake = start(struck, *words)
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
        trained = len(list(struck.glob("work/runs/*/finished/run.json")))
        print(f"{done.total()}: {how}, {trained} runs trained", flush=True)
    finish(struck, *words)
    finish(struck, target)
    log = (struck / "snakemake.log").read_text()
    print(
        f"{done.total()} strikes in {time.monotonic() - begun:.0f} s: {dict(done)}; every process gone after at most "
        f"{slowest:.1f} s; {log.count('resumed after epoch')} trainings went on, {log.count('is already finished')} "
        f"finished ones were found again; tracebacks: {log.count('Traceback')}"
    )
    expected, found = results(clean), results(struck)
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert not different, f"{len(different)} of {len(expected)} files differ: {different[:5]}"
    assert "Nothing to be done" in finish(struck, "-n", target)
    print(f"all {len(expected)} files of results/ are equal, bit for bit, but for the times that runs took")


def share_the_trunk(folder: Path) -> None:
    """Make the table of a project one of rows with new views through a tiny ViT. Its weights are beside the project."""
    write_weights(folder.parent)
    shrink(folder, ROWS, backbone="tiny", view_bank=0, epochs=100)
    file = folder / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params["backbones"]["tiny"] = TINY | {"weights": "../tiny.pth"}
    file.write_text(yaml.safe_dump(params, sort_keys=False))


if __name__ == "__main__":
    main()
