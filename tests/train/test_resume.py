"""A run that was interrupted ends as one that was not: the same bits, the same log."""

import random
import signal
import time

import pytest
from safetensors.torch import load_file

from tests.train.runs import STEPS_PER_EPOCH, assert_same_bits, finish, last_state, losses, start

EVERYTHING = ("ema=0.9", "augment.mixup=0.2", "optimizer.name=lion", "optimizer.lr=3e-4", "accumulate=2")
WORKERS = ("data.store=host", "data.workers=2", "augment.randaugment=rand-m5-n2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run without interruption, by its settings."""
    done = {}

    def run(*settings):
        if settings not in done:
            folder = tmp_path_factory.mktemp("whole") / "run"
            code, output = finish(start(folder, *settings))
            assert code == 0, output
            done[settings] = folder
        return done[settings]

    return run


def assert_ended_alike(folder, reference):
    assert losses(folder) == losses(reference)
    assert_same_bits(last_state(folder), last_state(reference))
    assert (folder / "confusion.csv").read_text() == (reference / "confusion.csv").read_text()
    weights = [load_file(path / "model" / "model.safetensors") for path in (folder, reference)]
    assert_same_bits(*weights)


@pytest.mark.parametrize("settings", [EVERYTHING, WORKERS], ids=["everything", "workers"])
def test_killed_without_warning_and_started_again(tmp_path, whole, settings):
    """SIGKILL after a random step, most likely within an epoch."""
    reference = whole("checkpoint.every_steps=2", *settings)
    step = random.randrange(1, 2 * STEPS_PER_EPOCH)
    folder = tmp_path / "run"
    command = (folder, "checkpoint.every_steps=2", *settings)
    code, output = finish(start(*command, KILL_AT=str(step)))
    assert code == -signal.SIGKILL, output
    assert not (folder / "summary.json").exists()
    code, output = finish(start(*command))
    assert code == 0, output
    assert_ended_alike(folder, reference)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(tmp_path, whole, signum):
    """Stopped in mid-epoch, without a checkpoint due; the same command goes on to the same end."""
    settings = ("epochs=6",)
    folder = tmp_path / "run"
    process = start(folder, *settings)
    deadline = time.monotonic() + 120
    while not (folder / "log.jsonl").exists() or len(losses(folder)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signum)
    code, output = finish(process)
    assert code != 0
    assert f"stopped by signal {int(signum)}" in output
    saved = last_state(folder)["progress"]["step"]
    assert 2 <= saved < 6 * STEPS_PER_EPOCH
    assert max(losses(folder)) == saved  # not a step was lost
    assert finish(start(folder, *settings))[0] == 0
    assert_ended_alike(folder, whole(*settings))


def test_a_finished_run_is_left_alone(whole, tmp_path):
    settings = ("checkpoint.every_steps=2", *EVERYTHING)
    folder = whole(*settings)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.pt")}
    code, output = finish(start(folder, *settings))
    assert code == 0, output
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.pt")} == before
