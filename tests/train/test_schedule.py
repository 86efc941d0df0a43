"""The learning rate, beside the authors' formula written anew and PyTorch's own schedulers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from cbsa.train import OptimizerConfig, ScheduleConfig, TrainConfig, recipe
from cbsa.train.schedule import learning_rate


def run(name, *, epochs=10, warmup=0.0, lr=0.3, min_lr=0.0):
    return TrainConfig(
        optimizer=OptimizerConfig(lr=lr), schedule=ScheduleConfig(name, warmup, min_lr), epochs=epochs
    )


def rates(config, steps_per_epoch):
    return [learning_rate(config, t, steps_per_epoch) for t in range(config.epochs * steps_per_epoch)]


def torch_rates(steps, warmup_steps, lr, min_lr):
    """Linear warm-up, then cosine, by PyTorch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    cosine = CosineAnnealingLR(optimizer, max(steps - warmup_steps, 1), eta_min=min_lr)
    scheduler = cosine
    if warmup_steps:
        rising = LinearLR(optimizer, 1 / warmup_steps, total_iters=max(warmup_steps - 1, 1))
        scheduler = SequentialLR(optimizer, [rising, cosine], [warmup_steps])
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large"])
def test_the_papers_schedule_for_all_150_epochs(size):
    """min((e + 1)/20, ½(1 + cos(πe/150))) of 2e-4, constant within an epoch."""
    config, steps = recipe(f"imagenet_cbt_{size}"), 7
    for epoch in range(150):
        expected = 2e-4 * min((epoch + 1) / 20, (1 + math.cos(math.pi * epoch / 150)) / 2)
        within = {learning_rate(config, epoch * steps + t, steps) for t in range(steps)}
        assert len(within) == 1
        assert within.pop() == pytest.approx(expected, rel=1e-12)


def test_the_papers_schedule_in_numbers():
    """By hand: the cosine has begun before the warm-up ends, so that the top is not quite reached."""
    config = recipe("imagenet_cbt_tiny")
    by_epoch = [learning_rate(config, epoch, 1) for epoch in range(150)]
    assert by_epoch[0] == pytest.approx(1e-5)
    assert by_epoch[9] == pytest.approx(1e-4)
    assert by_epoch[50] == pytest.approx(1.5e-4)  # cos(π/3) = ½
    assert by_epoch[75] == pytest.approx(1e-4)
    assert by_epoch[100] == pytest.approx(0.5e-4)
    assert 0 < by_epoch[149] < 1e-7
    assert max(by_epoch) == by_epoch[19] < 2e-4
    assert by_epoch[19] == pytest.approx(1e-4 * (1 + math.cos(math.pi * 19 / 150)))


@pytest.mark.parametrize(
    ("epochs", "steps_per_epoch", "warmup", "min_lr"),
    [
        (10, 7, 0.0, 0.0),
        (10, 7, 2.0, 0.0),
        (10, 7, 2.0, 0.01),
        (3, 11, 0.5, 0.001),
        (4, 5, 0.2, 0.0),
        (1, 1, 0.0, 0.0),
    ],
)
def test_cosine_is_pytorchs(epochs, steps_per_epoch, warmup, min_lr):
    config = run("cosine", epochs=epochs, warmup=warmup, min_lr=min_lr)
    warmup_steps = round(warmup * steps_per_epoch)
    expected = torch_rates(epochs * steps_per_epoch, warmup_steps, 0.3, min_lr)
    assert rates(config, steps_per_epoch) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_end_points_of_the_cosine():
    config = run("cosine", epochs=10, warmup=2.0, min_lr=0.02)
    steps = rates(config, 100)
    assert steps[0] == pytest.approx(0.3 / 200)
    assert steps[199] == steps[200] == pytest.approx(0.3)
    assert steps[600] == pytest.approx((0.3 + 0.02) / 2)  # half-way down
    assert steps[-1] == pytest.approx(0.02, abs=1e-5)
    assert learning_rate(config, 1000, 100) == learning_rate(config, 5000, 100) == pytest.approx(0.02)


def test_constant():
    assert rates(run("constant", epochs=3), 4) == [0.3] * 12
    expected = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3] + [0.3] * 6
    assert rates(run("constant", epochs=3, warmup=1.5), 4) == pytest.approx(expected)


def test_warm_up_of_a_fraction_of_an_epoch():
    assert rates(run("constant", epochs=1, warmup=0.5), 4) == pytest.approx([0.15, 0.3, 0.3, 0.3])
    assert rates(run("constant", epochs=1, warmup=0.01), 4) == [0.3] * 4  # less than a step
    by_epoch = [learning_rate(run("reference", epochs=4, warmup=2.5), e, 1) for e in range(4)]
    expected = [0.3 * min((e + 1) / 2.5, (1 + math.cos(math.pi * e / 4)) / 2) for e in range(4)]
    assert by_epoch == pytest.approx(expected)


def test_the_reference_without_warm_up_is_the_cosine_by_epoch():
    config = run("reference", epochs=8)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = CosineAnnealingLR(optimizer, 8)
    for epoch in range(8):
        assert learning_rate(config, epoch * 3 + 2, 3) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


@given(
    st.sampled_from(["cosine", "reference", "constant"]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.floats(0, 30),
    st.floats(0, 0.3),
)
def test_any_schedule_stays_between_0_and_the_top(name, epochs, steps_per_epoch, warmup, min_lr):
    """A warm-up may even be longer than the run."""
    found = rates(run(name, epochs=epochs, warmup=warmup, min_lr=min_lr), steps_per_epoch)
    assert all(0 < lr <= 0.3 * (1 + 1e-12) for lr in found)
    warm = sum(1 for t in range(len(found)) if t < round(warmup * steps_per_epoch))
    if name == "cosine":
        assert found[:warm] == sorted(found[:warm])
        assert found[warm:] == sorted(found[warm:], reverse=True)
        assert all(lr >= min_lr * (1 - 1e-12) for lr in found[warm:])
