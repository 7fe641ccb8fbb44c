"""Pack the files for the GPU check on a machine without a network: the project, some wheels and photographs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from ctxgcd.bench.pictures import jpegs
from ctxgcd.errors import UserError
from ctxgcd.utils.reporting import reported

NEEDED = ("pydantic", "filelock")  # in addition to torch, timm, scipy and pandas
MOST = 1500  # maximum number of photographs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-there", default="3.12", help="Python's version on that machine")
    parser.add_argument("--photographs", default="", help="folder of JPEGs to include")
    parser.add_argument("--out", type=Path, default=Path("work/gpu-kit.tar"))
    arguments = parser.parse_args()
    found = jpegs(Path(arguments.photographs))[:MOST] if arguments.photographs else []
    locked = Path("requirements.lock").read_text(encoding="utf-8")
    pinned = re.findall(rf"^(?:{'|'.join(NEEDED)})==\S+", locked, re.MULTILINE)
    with TemporaryDirectory() as name:
        kit = Path(name)
        project = kit / "project.tar"
        _run(["git", "archive", "--output", str(project), "HEAD"], "the project is not a git checkout")
        with tarfile.open(project) as archive:
            archive.extractall(kit, filter="data")
        project.unlink()
        wheels = ["--only-binary", ":all:", "--python-version", arguments.python_there, "--dest", str(kit / "wheels")]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *wheels, *pinned], "the wheels cannot be downloaded")
        for number, path in enumerate(found):
            (kit / "photographs").mkdir(exist_ok=True)
            shutil.copy(path, kit / "photographs" / f"{number:04d}.jpg")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(arguments.out, "w") as archive:
            archive.add(kit, arcname=".")
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:.0f} MiB, {len(found)} photographs. To run it:")
    print("  tar -xf gpu-kit.tar; pip install --no-index --find-links wheels pydantic filelock")
    print("  python3 workflow/scripts/check_gpu.py" + " --images photographs" * bool(found))


def _run(command: list[str], fault: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{fault}: {last}; nothing was packed")


if __name__ == "__main__":
    with reported():
        main()
