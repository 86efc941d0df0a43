"""What goes wrong in the middle of a run: the disk, the files, the numbers, the images."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from cbsa.data import TooManyCorruptImages
from cbsa.train import NonFiniteError, override, recipe, train
from cbsa.train.engine import _Run
from cbsa.train.step import GradientStep
from tests.train.runs import (
    STEPS_PER_EPOCH,
    assert_same_bits,
    finish,
    last_state,
    losses,
    start,
    tiny_config,
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(tiny_config("checkpoint.every_steps=2", "checkpoint.keep=4"), folder)
    return folder


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "replaced"])
def test_a_torn_checkpoint_is_passed_over(tmp_path, reference, damage, capsys):
    """The one before it is used, the user is told, and the end is the same."""
    config = tiny_config("checkpoint.every_steps=2", "checkpoint.keep=4")
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_look=lambda step, loss: _interrupt(step, at=2 * STEPS_PER_EPOCH - 1))
    newest = max((folder / "checkpoints").glob("step-*.pt"))
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        content = content[: len(content) * 2 // 3]
    elif damage == "empty":
        content = bytearray()
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content = bytearray(b"not a checkpoint at all")
    newest.write_bytes(content)
    train(config, folder, console=Console(width=200))
    said = capsys.readouterr().out
    assert newest.name in said
    assert "The checkpoint before it is used instead" in said
    assert "Going on from step 6" in said
    assert losses(folder) == losses(reference)
    assert_same_bits(last_state(folder), last_state(reference))


def test_a_full_disk_costs_no_older_checkpoint(tmp_path, reference):
    """Files are limited to 60 kB by the kernel once the first checkpoint is written: nothing larger fits."""
    folder = tmp_path / "run"
    program = (
        "import resource, sys; from pathlib import Path; from rich.console import Console\n"
        "from cbsa.train import train; from tests.train.runs import tiny_config\n"
        "import torch; torch.set_num_threads(1)\n"
        "def look(step, loss):\n"
        "    if step == 3: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))\n"
        "    if step == 9: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "config = tiny_config('checkpoint.every_steps=2', 'checkpoint.keep=4')\n"
        "train(config, sys.argv[1], console=Console(width=200), on_look=look)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert said.count("could not be written") >= 3  # steps 4, 6 and 8; the best, and the end of the epoch
    assert "step-000000004.pt could not be written" in said
    assert "Older checkpoints are intact: step-000000002.pt" in said
    assert not list(folder.rglob("*.part"))
    names = sorted(p.name for p in (folder / "checkpoints").glob("step-*.pt"))
    assert names == ["step-000000002.pt", "step-000000010.pt"]
    assert losses(folder) == pytest.approx(losses(reference), rel=1e-3)  # one thread here


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    config = tiny_config("checkpoint.every_steps=2", "log_every=3")
    folder = tmp_path / "run"
    step = _Run._step

    def poisoned(self, batches):
        if self.state.progress.step == 6:
            with torch.no_grad():
                self.model.head.bias.fill_(float("nan"))
        return step(self, batches)

    monkeypatch.setattr(_Run, "_step", poisoned)
    with pytest.raises(
        NonFiniteError, match=r"the loss is nan at step 6 \(epoch 2\).*learning rate"
    ) as error:
        train(config, folder)
    report = json.loads((folder / "non_finite.json").read_text())
    assert report["step"] == 6
    assert len(report["batch"]) == len(set(report["batch"])) == config.batch_size
    assert report["images"][0] in str(error.value)
    state = last_state(folder)
    assert state["progress"]["step"] == 6
    assert all(t.isfinite().all() for t in state["model"].values() if t.is_floating_point())
    monkeypatch.undo()
    assert train(config, folder).summary["steps"] == 2 * STEPS_PER_EPOCH  # the last checkpoint was good


def test_the_batch_reported_is_the_one_trained_on(tmp_path, monkeypatch):
    """One image makes the loss infinite: it is in the list, and the step is that of its batch."""
    config = tiny_config("augment.crop=none", "label_smoothing=0", "epochs=1")
    seen = []
    forward_backward, prepare = GradientStep.forward_backward, GradientStep.prepare

    def watched(self, batch):
        seen.append(batch.indices.tolist())
        return prepare(self, batch)

    def broken(self, images, targets):
        loss = forward_backward(self, images, targets)
        return loss * float("inf") if 77 in seen[-1] else loss

    monkeypatch.setattr(GradientStep, "prepare", watched)
    monkeypatch.setattr(GradientStep, "forward_backward", broken)
    with pytest.raises(NonFiniteError):
        train(config, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "non_finite.json").read_text())
    assert 77 in report["batch"]
    assert report["batch"] == seen[-1]
    assert report["step"] == len(seen) - 1


def test_parameters_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    """The loss of the last step was finite, but its update was not."""
    config = tiny_config("checkpoint.every_steps=3")
    step = _Run._step

    def poisoned(self, batches):
        lr = step(self, batches)
        if self.state.progress.step == 3:
            with torch.no_grad():
                self.model.blocks[1].norm2.weight[0] = float("inf")
        return lr

    monkeypatch.setattr(_Run, "_step", poisoned)
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.norm2\.weight is not finite at step 3"):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*.pt"))


@pytest.fixture
def pictures(tmp_path):
    """24 JPEGs of two classes, 4 more for evaluation; one of each split is damaged."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i:02d}.jpg")
    bad = [tmp_path / "pictures/train/cat/03.jpg", tmp_path / "pictures/val/dog/01.jpg"]
    bad[0].write_bytes(bad[0].read_bytes()[:300])
    bad[1].write_bytes(b"no image")
    return tmp_path / "pictures", bad


@pytest.mark.parametrize("store", ["host", "device"])
def test_corrupt_images_are_reported_counted_and_skipped(tmp_path, pictures, store, capsys):
    root, bad = pictures
    config = _picture_config(root, f"data.store={store}")
    result = train(config, tmp_path / "run", console=Console(width=200))
    assert result.summary["unreadable_images"] == 2
    assert result.summary["evaluated_images"] == 3
    said = capsys.readouterr().out
    recorded = [json.loads(line) for line in (tmp_path / "run" / "corrupt.jsonl").read_text().splitlines()]
    for path in bad:
        assert re.sub(r"\s", "", str(path)) in re.sub(r"\s", "", said)
        assert str(path) in [r["image"] for r in recorded]


def test_too_many_corrupt_images_stop_the_run(tmp_path, pictures):
    root, _ = pictures
    with pytest.raises(TooManyCorruptImages, match=r"data\.max_corrupt=1"):
        train(_picture_config(root, "data.max_corrupt=1"), tmp_path / "run")


def _picture_config(root, *settings):
    return override(
        recipe("digits_cbt"),
        [
            *("data.dataset=folder", f"data.root={root}", "data.in_chans=3", "data.mean=0.5,0.5,0.5"),
            *("data.std=0.5,0.5,0.5", "data.img_size=16", "data.workers=0", "augment.padding=2", "epochs=1"),
            *(
                "batch_size=8",
                "schedule.warmup_epochs=0",
                "model.kwargs.embed_dim=16",
                "model.kwargs.depth=1",
            ),
            *("model.kwargs.num_heads=2", *settings),
        ],
    )


def _interrupt(step, at):
    if step == at:
        raise KeyboardInterrupt


def test_starting_twice_in_one_folder_is_refused(tmp_path):
    folder = tmp_path / "run"
    outcome = []

    def look(step, loss):
        if step == 1:
            outcome.append(finish(start(folder)))

    train(tiny_config("epochs=1"), folder, on_look=look)
    code, output = outcome[0]
    assert code != 0
    assert "is in use by another run" in output
