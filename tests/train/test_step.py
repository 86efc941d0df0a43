"""Loss and gradients of a step: against formulas, in parts, in low precision, compiled, captured."""

import shutil

import pytest
import torch
from torch import nn

from cbsa.data import Batch
from cbsa.train import override, train
from cbsa.train.classification import ClassObjective
from cbsa.train.engine import _Run
from cbsa.train.step import GradientStep
from tests.compare import DEVICES, assert_close
from tests.train.runs import assert_same_bits, last_state, losses, tiny_config

# Batch statistics differ between a batch and its parts: this model has none.
NO_BATCH_NORM = "model.kwargs.stem=linear"


class Linear(nn.Module):
    """A linear classifier in float64, whose gradient can be written down."""

    def __init__(self, pixels, classes):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(classes, pixels, dtype=torch.float64) / pixels)

    def forward(self, images):
        return images.double().flatten(1) @ self.weight.T


def batch_of(count, side=4, classes=3):
    generator = torch.Generator().manual_seed(1)
    return Batch(
        torch.randint(0, 256, (count, 1, side, side), generator=generator, dtype=torch.uint8),
        torch.randint(0, classes, (count,), generator=generator),
        torch.arange(count),
        torch.ones(count, dtype=torch.bool),
    )


def step_of(model, *settings):
    config = tiny_config(*settings)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return GradientStep(model, config, scaler, torch.device("cpu"), ClassObjective(config, 3))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradient_are_those_of_smoothed_cross_entropy(smoothing):
    """−Σ_c q_c log p_c with q = (1−s)·onehot + s/C on ((x/255) − ½)/½; its gradient is (p − q)ᵀx / B."""
    model, batch = Linear(16, 3), batch_of(6)
    loss = step_of(model, f"label_smoothing={smoothing}")(iter([batch]))
    x = ((batch.images.double() / 255 - 0.5) / 0.5).flatten(1)
    q = (1 - smoothing) * nn.functional.one_hot(batch.targets, 3) + smoothing / 3
    logits = x @ model.weight.detach().T
    p = logits.softmax(1)
    assert_close(loss.double(), -(q * p.log()).sum(1).mean(), 1e-6)
    assert_close(model.weight.grad, (p - q).T @ x / 6, 1e-6)


def test_parts_add_up_to_the_whole():
    """Gradients accumulated over three parts are those of the batch; stale ones are cleared first."""
    batch = batch_of(6)
    whole, parts = Linear(16, 3), Linear(16, 3)
    parts.weight.grad = torch.full_like(parts.weight, 7.0)
    a = step_of(whole)(iter([batch]))
    cut = [
        Batch(batch.images[i : i + 2], batch.targets[i : i + 2], batch.indices[i : i + 2], batch.valid[:2])
        for i in (0, 2, 4)
    ]
    b = step_of(parts, "accumulate=3")(iter(cut))
    assert_close(b, a, 1e-6)
    assert_close(parts.weight.grad, whole.weight.grad, 1e-6)  # the loss is taken in float32


def test_mixed_targets_are_distributions(monkeypatch):
    """Mixup through timm: targets sum to 1, and the smoothing is in them, not in the loss too."""
    model = Linear(16, 3)
    step = step_of(model, "augment.mixup=0.5", "label_smoothing=0.1")
    images, targets = step.prepare(batch_of(6))
    assert targets.shape == (6, 3)
    assert_close(targets.sum(1), torch.ones(6), 1e-6)
    assert targets.min() >= 0.1 / 3 - 1e-6
    loss = step.forward_backward(images, targets)
    logits = images.double().flatten(1) @ model.weight.detach().T
    assert_close(loss.double(), -(targets * logits.log_softmax(1)).sum(1).mean(), 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_accumulation_gives_the_same_run(tmp_path, device):
    common = (NO_BATCH_NORM, f"runtime.device={device}", "runtime.cuda_graph=off", "optimizer.lr=1e-4")
    train(tiny_config(*common), tmp_path / "whole")
    train(tiny_config(*common, "accumulate=3"), tmp_path / "parts")
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_follows_float32(tmp_path, precision, device):
    common = (f"runtime.device={device}", "optimizer.lr=1e-4", "runtime.cuda_graph=off")
    train(tiny_config(*common), tmp_path / "fp32")
    train(tiny_config(*common, f"runtime.precision={precision}"), tmp_path / precision)
    expected = losses(tmp_path / "fp32")
    assert losses(tmp_path / precision) == pytest.approx(expected, rel=2e-2)
    assert losses(tmp_path / precision) != expected
    scaler = last_state(tmp_path / precision)["scaler"]
    assert bool(scaler) == (precision == "fp16")  # the scale is part of the state


def test_gradients_are_clipped(tmp_path, monkeypatch):
    """Their norm at the optimiser's step is the limit, also with the scaler of fp16 in between."""
    for precision in ("fp32", "fp16"):
        norms = []
        step = _Run._step

        def watched(self, batches, step=step, norms=norms):
            optimizer = self.state.optimizer
            if not optimizer._optimizer_step_pre_hooks:
                optimizer.register_step_pre_hook(
                    lambda o, *_: norms.append(
                        torch.stack([p.grad.norm() for g in o.param_groups for p in g["params"]]).norm()
                    )
                )
            return step(self, batches)

        monkeypatch.setattr(_Run, "_step", watched)
        config = tiny_config("optimizer.clip_grad=0.01", "epochs=1", f"runtime.precision={precision}")
        train(config, tmp_path / precision)
        monkeypatch.undo()
        assert norms
        assert all(norm.item() == pytest.approx(0.01, rel=1e-3) for norm in norms)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_blocks_give_the_same_run(tmp_path, device):
    if device == "cpu" and not shutil.which("g++"):
        pytest.skip("compiling for the CPU needs g++")
    settings = (f"runtime.device={device}", "optimizer.lr=1e-4", "epochs=1", "model.kwargs.depth=1")
    train(tiny_config(*settings), tmp_path / "eager")
    train(tiny_config(*settings, "runtime.compile=true"), tmp_path / "compiled")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-3)


@pytest.mark.gpu
def test_a_captured_step_is_the_eager_one(tmp_path):
    """Losses and batch statistics of a CUDA graph against launching kernel by kernel, deterministically."""
    common = ("runtime.device=cuda", "runtime.deterministic=true", "optimizer.lr=1e-4", "ema=0.9")
    for switch in ("on", "off"):
        train(tiny_config(*common, f"runtime.cuda_graph={switch}"), tmp_path / switch)
    assert losses(tmp_path / "on") == pytest.approx(losses(tmp_path / "off"), rel=1e-5)
    a, b = last_state(tmp_path / "on")["model"], last_state(tmp_path / "off")["model"]
    for name in a:
        assert_close(a[name].double(), b[name].double(), 1e-3, name)


def test_what_cannot_be_captured_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cuda_graph=on is not possible: the device is no GPU; accumulate"):
        train(tiny_config("runtime.cuda_graph=on", "accumulate=2"), tmp_path / "run")


def test_recomputation_changes_nothing(tmp_path):
    train(tiny_config("epochs=1"), tmp_path / "stored")
    train(tiny_config("epochs=1", "model.checkpointing=true"), tmp_path / "recomputed")
    assert losses(tmp_path / "recomputed") == losses(tmp_path / "stored")
    assert_same_bits(last_state(tmp_path / "stored")["model"], last_state(tmp_path / "recomputed")["model"])


def test_the_seed_decides_the_run(tmp_path):
    config = tiny_config("epochs=1")
    for name, given in (("a", config), ("b", config), ("c", override(config, ["seed=1"]))):
        train(given, tmp_path / name)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")
