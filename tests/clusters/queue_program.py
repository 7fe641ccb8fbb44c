"""A simulated SLURM queue of one host, which records every submission and runs it.

It is called with the name of a command and its arguments. Its records are in the folder QUEUE, where two files change
its behaviour. `closed`: no job runs, and each is reported as failed. `interrupt`, with a pattern: the first training
that writes a matching file ends as at its time limit, by SIGTERM and soon after SIGKILL. Until then, trainings call the
real programs instead of those in the folder FORKED.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

QUEUE = Path(os.environ["QUEUE"])


def sbatch(words: list[str]) -> None:
    """Record the call, start its job in the background and print its number."""
    parser = argparse.ArgumentParser()
    for option in ("--wrap", "--output", "--comment", "--job-name", "-D"):
        parser.add_argument(option)
    call, options = parser.parse_known_args(words)
    number = len(list(QUEUE.glob("*.json"))) + 1
    closed = (QUEUE / "closed").exists()
    job = {"comment": call.comment, "options": options, "state": "FAILED" if closed else "RUNNING"}
    job |= {"command": call.wrap, "log": call.output.replace("%j", str(number)), "folder": call.D}
    record(number, job)
    if not closed:
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen([sys.executable, __file__, "supervise", str(number)], start_new_session=True, **nowhere)
    print(number)


def supervise(number: int) -> None:
    """Run a job until its end or its time limit."""
    job = json.loads((QUEUE / f"{number}.json").read_text())
    gpus = {"SLURM_GPUS": "1"} if any(option.startswith("--gpus") for option in job["options"]) else {}
    interrupt = QUEUE / "interrupt"
    training = job["comment"].startswith("rule_train")
    command = job["command"]
    if training and interrupt.exists():
        command = command.replace(os.environ["FORKED"], str(Path(sys.executable).parent))
    with open(job["log"], "w") as log:
        environment = os.environ | {"SLURM_JOB_ID": str(number)} | gpus
        process = psutil.Popen(["sh", "-c", command], cwd=job["folder"], stdout=log, stderr=log, env=environment)
        while process.poll() is None:
            time.sleep(0.02)
            if training and interrupt.exists() and any(Path().glob(interrupt.read_text())):
                interrupt.unlink()
                end(process)
                record(number, job | {"state": "TIMEOUT"})
                return
    record(number, job | {"state": "FAILED" if process.returncode else "COMPLETED"})


def end(process: psutil.Popen) -> None:
    """End a job and all processes that it started."""
    everything = [*process.children(recursive=True), process]
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for one in everything:
            if one.is_running():
                send(one)
        psutil.wait_procs(everything, timeout=1)


def record(number: int, job: dict[str, Any]) -> None:
    """Write a job's record atomically."""
    temporary = QUEUE / f"{number}.tmp"
    temporary.write_text(json.dumps(job))
    temporary.replace(QUEUE / f"{number}.json")


def states() -> str:
    """Return the state of every job, one per line."""
    jobs = {file.stem: json.loads(file.read_text()) for file in QUEUE.glob("*.json")}
    return "".join(f"{number}|{job['state']}\n" for number, job in sorted(jobs.items()))


def sacct(words: list[str]) -> None:
    """Print the states of all jobs after a change of a running one, so that few processes are started."""
    if "--name" not in words:  # the plugin requests an account
        return
    before, until = states(), time.monotonic() + 20
    while states() == before and "RUNNING" in before and time.monotonic() < until:
        time.sleep(0.05)
    print(states(), end="")


def srun(words: list[str]) -> None:
    """Record the step's options and execute its command."""
    start = words.index("-m") - 1
    with (QUEUE / "steps").open("a") as file:
        file.write(json.dumps(words[:start]) + "\n")
    os.execvp(words[start], words[start:])


def main() -> None:
    name, *words = sys.argv[1:]
    commands = {"sbatch": sbatch, "sacct": sacct, "srun": srun}
    if name == "supervise":
        supervise(int(words[0]))
    elif name in commands:
        commands[name](words)
    elif name == "sinfo":
        print("PARTITION\ncommon*\nmany_gpus")
    elif name == "sacctmgr":
        print("birds")


if __name__ == "__main__":
    main()
