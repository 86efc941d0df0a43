"""Small runs for the tests: seconds on a CPU, through every part of the engine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from cbsa.train import TrainConfig, override, recipe, train
from cbsa.train.checkpoint import read_run_checkpoint
from cbsa.train.config import RunConfig

Process = subprocess.Popen[str]

TINY = (
    "model.kwargs.embed_dim=16",
    "model.kwargs.depth=2",
    "model.kwargs.num_heads=2",
    "data.img_size=16",
    "augment.padding=2",
    "epochs=2",
    "batch_size=240",
    "schedule.warmup_epochs=1",
    "eval_batch_size=128",
    "log_every=1",
)
STEPS_PER_EPOCH = 5  # 1,438 images

# `python -c PROGRAM FOLDER SETTING...` trains as `cbsa train digits_cbt` does.
PROGRAM = """
import sys
from cbsa.train import override, recipe
from tests.train.runs import train_alone

train_alone(override(recipe("digits_cbt"), sys.argv[2:]), sys.argv[1])
"""


def tiny_config(*settings: str) -> TrainConfig:
    return override(recipe("digits_cbt"), [*TINY, *settings])


def train_alone(config: RunConfig, folder: str) -> None:
    """Train in a process of its own, on one thread.

    Environment: KILL_AT kills the process of rank KILL_RANK without warning after so many steps, the first
    time it gets there.
    """
    torch.set_num_threads(1)
    kill_at, rank = int(os.environ.get("KILL_AT", "0")), os.environ.get("RANK", "0")
    marker = Path(folder).with_suffix(".killed")

    def look(step: int, loss: float) -> None:
        if step == kill_at and rank == os.environ.get("KILL_RANK", "0") and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    train(config, Path(folder), on_look=look)


def launch(program: str, words: Sequence[object], folder: Path, launcher=(), **environment: str) -> Process:
    """Start a program with some words in a process of its own, or in several by torchrun."""
    if launcher:
        file = folder.with_suffix(".py")
        file.write_text(program)
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, str(file)]
    else:
        command = [sys.executable, "-c", program]
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])  # `tests` is here
    return subprocess.Popen(
        [*command, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start(folder: Path, *settings: str, launcher=(), **environment: str) -> Process:
    """Start a run in a process of its own, or in several by torchrun."""
    return launch(PROGRAM, (folder, *TINY, *settings), folder, launcher, **environment)


def finish(process: Process) -> tuple[int, str]:
    """Exit code and output."""
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def torchrun(processes: int, *more: str) -> tuple[str, ...]:
    return ("--standalone", f"--nproc-per-node={processes}", *more)


def losses(folder: Path) -> dict[int, float]:
    """Loss by step, from the log."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [r["step"] for r in records if r["kind"] == "step"]
    assert steps == sorted(set(steps)), "the log has a step twice, or out of order"
    return {r["step"]: r["loss"] for r in records if r["kind"] == "step"}


def last_state(folder: Path) -> dict:
    newest = max((folder / "checkpoints").glob("step-*.pt"))
    return read_run_checkpoint(newest)


def assert_same_bits(a, b, where="state"):
    """Compare nested states exactly, but for the time they took."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key != "seconds":
                assert_same_bits(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):  # settings of the optimiser come back as lists
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_bits(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    else:
        assert a == b, where
