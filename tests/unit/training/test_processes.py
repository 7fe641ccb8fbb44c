"""Several processes of one training, connected by gloo on the CPU, give the same run as one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.pipeline.possible import missing_package
from ctxgcd.training import processes
from ctxgcd.training.processes import Processes
from tests.helpers.compared import COMPARED, marked
from tests.helpers.forked import programs
from tests.helpers.places import ENVIRONMENT

pytestmark = pytest.mark.slow

VARIANTS = ("paper", "released", "mended", "staged", "grouped", *COMPARED)
INSTALLED = [variant for variant in VARIANTS if variant not in METHODS or not missing_package(variant)]

# A training of a tiny ViT on random images, as in train.run; each process writes its final state to a file.
SCRIPT = """
import sys
from pathlib import Path

import timm
import torch

from ctxgcd.catalogue.entries import METHODS, load
from ctxgcd.images.store import Store
from ctxgcd.images.views import Cropper
from ctxgcd.methods.full import Full
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.training import loop
from ctxgcd.training.processes import started
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import FreshViews
from tests.helpers.params import values
from tests.helpers.training import parameters

torch.set_num_threads(1)


class Staged(Full):
    def stage(self):
        return SimGCD(self.p | {"epochs": 1, "batch_size": 5})

    def prepare(self, network, look):
        ids = torch.arange(len(network.classifier.direction))
        with torch.no_grad():
            network.classifier.direction.copy_(look.features(ids) + look.train_features(ids, look.stream("start")))


def train(out, epochs, variant, processes, device):
    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).eval().requires_grad_(False)
    # Neither the images nor a batch's 7 can be shared out evenly. As different as can be, and no view drawn twice:
    # between rows that are nearly equal rounding would choose the nearest.
    images, side = 37, 200
    pixels = torch.rand(images, 1, 3) * torch.rand(images, side * side, 1) * 255
    pixels = pixels.flatten(0, 1).to(torch.uint8)
    sides = torch.full((images,), side)
    store = Store(pixels, torch.arange(images) * side * side, sides, sides)
    heads = {"projector_width": 16, "projection_dim": 8, "head_dim": 32, "experts": 2, "expert_batch": 5}
    heads |= {"min_similarity": 0.2, "warmup_epochs": 0}
    p = parameters(batch_size=7, epochs=epochs, seed=3, lr=0.02, T_warm=0, tail_blocks=1, **heads)
    # Three groups of three images: the second has images of both processes.
    changes = {"staged": {}, "grouped": {"batch_size": 9, "loss_group": 3}}.get(variant, {"variant": variant})
    if variant in METHODS:
        method = load(variant)(values(variant) | p | {"stage_epochs": 1})
    else:
        method = (Staged if variant == "staged" else Full)(p | changes)
    backbone = method.cut(net)
    labels = torch.where(torch.arange(30) % 3 == 0, torch.arange(30) % 2, -1)
    network = method.network(backbone.tail, backbone.dim, 2)
    with torch.no_grad():
        for value in (*net.parameters(), *(network.projector.parameters() if hasattr(network, "projector") else ())):
            value.mul_(4 if value.ndim > 1 else 1)
    views = FreshViews(Cropper(store, 32, [0.5] * 3, [0.5] * 3, device), backbone, "float32", out.parent, processes)
    state = out.with_suffix(".state")
    row, inputs = Row(method, network.eval(), state, "made-up", {}), StepInputs(views, labels, "float32", 3, processes)
    loop.train(row, inputs)
    features = inputs.features(network, torch.arange(images))
    made = {"network": network.state_dict(), "history": row.history, "features": features}
    torch.save(made, f"{out}.{processes.rank}")


count, epochs = int(sys.argv[1]), int(sys.argv[2])
with started([torch.device("cpu")] * count) as (processes, device):
    for out in map(Path, sys.argv[3:]):
        train(out, epochs, out.name, processes, device)
"""


def train(folder: Path, count: int) -> dict[str, list[dict]]:
    """Train each variant with this number of processes; return the final state of each process."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [programs() / "python", str(script), str(count), "2", *(str(folder / variant) for variant in INSTALLED)]
    # As in a SLURM job, which starts one process that starts the others.
    queue = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0"}
    environment = ENVIRONMENT | queue
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("epoch 2/2") == len(INSTALLED)  # only the first process prints
    return {v: [torch.load(folder / f"{v}.{rank}", weights_only=True) for rank in range(count)] for v in INSTALLED}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[dict]]]:
    """The final states with one process and with two."""
    folder = tmp_path_factory.mktemp("processes")
    return {count: train(folder / str(count), count) for count in (1, 2)}


@pytest.mark.parametrize("variant", marked(VARIANTS))
def test_two_processes_train_what_one_does(trained: dict[int, dict[str, list[dict]]], variant: str) -> None:
    (one,), two = (trained[count][variant] for count in (1, 2))
    for name, value in one["network"].items():
        assert torch.equal(two[0]["network"][name], two[1]["network"][name]), name  # bit for bit, without an exchange
        torch.testing.assert_close(two[0]["network"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(two[0]["features"], one["features"], rtol=1e-4, atol=1e-4)
    assert two[0]["history"] == two[1]["history"]
    for mine, theirs in zip(one["history"], two[0]["history"], strict=True):
        assert mine.keys() == theirs.keys()
        assert list(theirs.values()) == pytest.approx(list(mine.values()), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 16, 17])
def test_the_rows_are_divided_among_the_processes(n: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.arange(n)
    each = -(-n // count)
    parts = [rows[Processes(rank, count).share(n)] for rank in range(count)]
    assert all(1 <= len(part) <= each for part in parts)

    def all_gather(places: list[torch.Tensor], padded: torch.Tensor) -> None:
        """Gather as the processes do: the padded rows of each one, in the order of ranks."""
        assert len(padded) == each
        for place, part in zip(places, parts, strict=True):
            place[: len(part)] = part

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    assert torch.equal(Processes(0, count).gather(parts[0], n), rows)


def test_an_error_of_all_processes_is_printed_once_and_a_killed_process_is_reported(tmp_path: Path) -> None:
    """A training that diverges because of its learning rate, and a process that is killed."""
    diverging = SCRIPT.replace("lr=0.02", "lr=1e12").replace(
        "with started", "from ctxgcd.utils.reporting import reported\nwith reported(), started"
    )
    (tmp_path / "script.py").write_text(diverging)
    command = [sys.executable, str(tmp_path / "script.py"), "2", "4", str(tmp_path / "paper")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("training diverged") == 1
    assert "Traceback" not in done.stderr
    (tmp_path / "script.py").write_text(diverging.replace("lr=1e12", "lr=0.02"))
    command[3] = "100000"
    first = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not (tmp_path / "paper.state").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    (other,) = (int(one) for one in running(tmp_path / "paper") if int(one) != first.pid)
    os.kill(other, signal.SIGKILL)
    errors = first.communicate(timeout=60)[1]
    assert first.returncode == 2
    assert "error: another process of this training has ended; run the same command again" in errors
    assert "Traceback" not in errors


def running(out: Path) -> list[str]:
    """Return the processes with a file in their command."""
    found = subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_the_others_end_with_the_first(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), "2", "100000", str(tmp_path / "paper")]
    first = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not (tmp_path / "paper.state").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (tmp_path / "paper.state").exists()
    assert len(running(tmp_path / "paper")) == 2
    first.send_signal(signal.SIGKILL)
    first.wait()
    while time.monotonic() < deadline:
        left = subprocess.run(
            ["pgrep", "-f", str(tmp_path / "paper")], capture_output=True, text=True, check=False
        ).stdout
        if not left:
            return
        time.sleep(0.2)
    pytest.fail(f"still running: {left}")


def test_a_process_ends_if_the_first_one_had_ended_before_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    def end(code: int) -> None:
        raise SystemExit(code)

    def waits(seconds: float) -> None:
        raise AssertionError("waits")

    monkeypatch.setattr(processes.os, "_exit", end)
    monkeypatch.setattr(processes.time, "sleep", waits)
    with pytest.raises(SystemExit):
        processes._end_with(gone.pid)
    with pytest.raises(AssertionError, match="waits"):
        processes._end_with(os.getpid())
