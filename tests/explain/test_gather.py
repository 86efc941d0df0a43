"""What the page holds: the probes' numbers, small, and never N×N."""

import base64
import math
import zlib

import pytest
import torch

from cbsa.analysis import coding_rates, reduced_coding_rates
from cbsa.analysis.projection import principal, turn_towards
from cbsa.explain.gather import gather
from tests.explain.pages import subject
from tests.explain.test_pack import bytes_of, unpack
from tests.largest import LargestTensor


def pixels(size=24):
    return torch.randn(1, 3, size, size)


def stored(view):
    return zlib.decompress(base64.b64decode(view["bytes"]))


def test_predictions_are_the_models():
    looked, images = subject(classes=["a", "b", "c", "d"]), pixels()
    found = gather(looked, images)["predictions"]
    with torch.no_grad():
        truth = looked.model(images)[0].softmax(-1)
    assert [p["label"] for p in found] == ["abcd"[i] for i in truth.argsort(descending=True)]
    assert [p["probability"] for p in found] == pytest.approx(
        truth.sort(descending=True).values.tolist(), rel=1e-5
    )


def test_models_without_classes_have_no_predictions():
    assert gather(subject(num_classes=0), pixels())["predictions"] == []
    assert gather(subject(global_pool=""), pixels())["predictions"] == []


def test_rates_are_the_probes():
    looked, images = subject(), pixels()
    view = gather(looked, images)
    rates, reduced = coding_rates(looked.model, images), reduced_coding_rates(looked.model, images)
    assert torch.tensor(view["rates"]["attention"]).allclose(rates.attention, rtol=1e-5)
    assert view["rates"]["sparsity"] == pytest.approx(rates.sparsity.tolist(), rel=1e-5)
    for place, layer in enumerate(view["layers"]):
        found = layer["representatives"]
        assert found["before"] == pytest.approx(reduced.representatives_before[place, 0].tolist(), rel=1e-5)
        assert found["after"] == pytest.approx(reduced.representatives_after[place, 0].tolist(), rel=1e-5)


def test_mlp_blocks_have_no_sparsity():
    assert gather(subject("mhsa", feed_forward="mlp"), pixels())["rates"]["sparsity"] == [None] * 3


def test_kinds_by_layer():
    view = gather(
        subject(["cbsa", "mssa", "mhsa", "linear", "tssa", "channel_cbsa", "agent"], depth=7), pixels()
    )
    kinds = [(layer["attention"], layer["kind"], "representatives" in layer) for layer in view["layers"]]
    assert kinds == [
        ("CBSA", "extraction", True),
        ("MSSA", "softmax", False),
        ("MHSA", "softmax", False),
        ("LinearAttention", "kernel", False),
        ("TSSA", "membership", False),
        ("ChannelCBSA", "none", False),
        ("Agent", "extraction", True),
    ]
    mssa, mhsa = view["layers"][1:3]
    assert mssa["queries"] == mssa["keys"]  # one projection, stored once
    assert mhsa["queries"] != mhsa["keys"]


@pytest.mark.parametrize("attention", ["cbsa", "mssa"])
def test_nothing_of_n_by_n_at_high_resolution(attention):
    size = 240  # as 960 px in patches of 16: 3,601 tokens
    looked = subject(attention, size=size, depth=2)
    tokens = 1 + (size // 4) ** 2
    with LargestTensor() as watch:
        view = gather(looked, pixels(size))
    assert view["grid"] == [60, 60]
    assert watch.entries < tokens**2 / 10
    assert len(stored(view)) < tokens**2 / 10


def test_a_resolution_too_high_is_refused_before_anything_is_computed():
    looked = subject(size=24_000)
    with pytest.raises(ValueError, match=r"Small at 24000 px has 36,000,001 tokens.* give a smaller --size"):
        gather(looked, None)


def test_activations_that_are_not_finite():
    looked = subject()
    with torch.no_grad():
        looked.model.blocks[1].attn.proj.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        gather(looked, pixels())


def test_principal_directions_against_the_svd():
    points = torch.randn(40, 6, dtype=torch.float64) * torch.tensor([5.0, 3, 2, 1, 1, 1], dtype=torch.float64)
    found, shares = principal(points, 3)
    u, s, _ = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    truth = u[:, :3] * s[:3]
    assert (found.abs() - truth.abs()).abs().max() < 1e-9
    assert shares == pytest.approx((s.square() / s.square().sum())[:3].tolist())


def test_principal_directions_of_points_in_one_place_or_on_a_line():
    found, shares = principal(torch.ones(5, 4), 2)
    assert found.abs().max() == 0
    assert shares == [0.0, 0.0]
    found, shares = principal(torch.arange(5.0).unsqueeze(-1), 2)
    assert shares == [1.0, 0.0]
    assert (found[:, 1] == 0).all()


def test_turning_undoes_a_rotation():
    reference = torch.randn(30, 3, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    assert turn_towards(reference @ rotation, reference).allclose(reference)


def test_states_have_one_length_and_their_spread():
    """Three directions hold what the variance says; the spread is the root of the total."""
    from cbsa.explain.gather import _states
    from cbsa.explain.pack import Packer

    states = torch.randn(3, 20, 8)
    packer = Packer()
    found = _states(packer, states)
    points = unpack(bytes_of(packer), found["points"])
    for state, place, shares, spread in zip(states, points, found["variance"], found["spread"], strict=True):
        tokens = torch.nn.functional.layer_norm(state.double(), (8,))[1:]
        total = (tokens - tokens.mean(0)).square().sum(-1).mean().item()
        assert spread == pytest.approx(math.sqrt(total / 8), rel=1e-5)
        assert (place[1:] ** 2).sum(-1).mean() == pytest.approx(total * sum(shares), rel=1e-3)
