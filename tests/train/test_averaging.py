"""The moving average of the weights, beside its sum written out in float64."""

import pytest
import torch
from torch import nn

from cbsa.models import create_model
from cbsa.train.averaging import WeightAverage
from cbsa.train.distributed import World
from cbsa.train.state import Progress, TrainState


def small_model():
    """Weights, biases, running statistics and a counter, which is not averaged."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()


def shake(model):
    """New values for all parameters and buffers, also returned."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor))
            else:
                tensor.add_(1)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def averages(average, model):
    with average.swapped():
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("decay", [0.05, 0.5, 0.9, 0.999])
def test_closed_form(decay):
    """Σ over updates of (1 − d_t)·Π d_s for later s, with d_t = min(decay, (1 + t)/(10 + t))."""
    model = small_model()
    values = [{name: t.clone() for name, t in model.state_dict().items()}]
    average = WeightAverage(model, decay)
    for _ in range(30):
        values.append(shake(model))
        average.update()
    decays = [0.0] + [min(decay, (1 + t) / (10 + t)) for t in range(1, 31)]
    found = averages(average, model)
    assert average.updates == 30
    for name, tensor in found.items():
        if not tensor.is_floating_point():
            assert torch.equal(tensor, values[-1][name])  # the counter is the model's
            continue
        expected = torch.zeros_like(tensor)
        for t, value in enumerate(values):
            share = 1 - decays[t]
            for later in decays[t + 1 :]:
                share *= later
            expected += share * value[name]
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-14)


def test_the_decay_warms_up():
    """Of a model that goes from 0 to 1, the average after the first update is 1 − 2/11."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.9999)
    nn.init.ones_(model.weight)
    seen = []
    for _ in range(3):
        average.update()
        seen.append(averages(average, model)["weight"].item())
    left = [2 / 11, 2 / 11 * 3 / 12, 2 / 11 * 3 / 12 * 4 / 13]  # what remains of the 0
    assert seen == pytest.approx([1 - x for x in left], rel=1e-12)


def test_a_small_decay_needs_no_warm_up():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.1)
    nn.init.ones_(model.weight)
    average.update()
    assert averages(average, model)["weight"].item() == pytest.approx(0.9)


def test_swapping_gives_the_model_its_own_weights_back_to_the_last_bit():
    model = create_model("cbt_tiny_patch4_32", embed_dim=16, depth=2, num_heads=2, num_classes=3)
    average = WeightAverage(model, 0.9)
    own = shake(model)
    storage = {name: t.data_ptr() for name, t in model.state_dict().items()}
    images = torch.randn(2, 3, 32, 32)
    average.update()
    model.eval()
    with torch.no_grad():
        logits = model(images)
        with average.swapped():
            assert {name: t.data_ptr() for name, t in model.state_dict().items()} == storage
            assert not torch.equal(model.head.weight, own["head.weight"])
            assert not torch.equal(model(images), logits)
        assert torch.equal(model(images), logits)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, own[name]), name


def test_swapping_ends_well_even_with_an_error():
    model = small_model()
    average = WeightAverage(model, 0.9)
    own = shake(model)
    before = averages(average, model)

    def break_off():
        with average.swapped():
            raise KeyError("in the middle")

    with pytest.raises(KeyError, match="in the middle"):
        break_off()
    assert all(torch.equal(t, own[name]) for name, t in model.state_dict().items())
    after = averages(average, model)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_updates_leave_the_model_alone():
    model = small_model()
    average = WeightAverage(model, 0.9)
    own = shake(model)
    average.update()
    assert all(torch.equal(t, own[name]) for name, t in model.state_dict().items())
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_restarting_takes_the_models_weights_and_the_count():
    """As after reading a checkpoint: then both go on alike."""
    model = small_model()
    average = WeightAverage(model, 0.99)
    for _ in range(5):
        shake(model)
        average.update()
    saved, saved_count = averages(average, model), average.updates
    following = [shake(model) for _ in range(3)]

    def follow(some):
        for values in following:
            model.load_state_dict(values)
            some.update()
        return averages(some, model)

    expected = follow(average)
    again = WeightAverage(model, 0.99)
    model.load_state_dict(saved)
    again.restart(saved_count)
    assert again.updates == 5
    found = follow(again)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_captured_state_holds_the_average_and_not_the_weights():
    """And neither is changed by what the model does afterwards."""
    model = small_model()
    average = WeightAverage(model, 0.5)
    own = shake(model)
    average.update()
    expected = averages(average, model)
    optimizer = torch.optim.AdamW(model.parameters())
    world = World(0, 1, torch.device("cpu"))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state = TrainState(model, optimizer, scaler, average, Progress(), world).capture()
    for name in ("0.weight", "1.bias", "1.running_mean"):
        assert torch.equal(state["average"][name], expected[name])
        assert torch.equal(state["model"][name], own[name])
        assert not torch.equal(expected[name], own[name])
