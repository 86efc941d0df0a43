"""Options of CBSA beyond the paper, in layers and models; tests/ops/test_extended.py has the operator."""

import pytest
import torch
from torch.nn import functional as F

from cbsa.analysis.layers import OwnLayer
from cbsa.layers import CBSA, MSSA, build_attention
from cbsa.models import create_model
from cbsa.models.costs import closed_form_macs, counted_macs, pairwise_similarities
from cbsa.ops import contract_broadcast
from cbsa.segmentation.decoders.layer import DecoderLayer
from tests.compare import assert_close
from tests.ops.test_extended import OPTIONS

LAYERS = [
    {"iterations": 2},
    {"rep_norm": "rms"},
    {"broadcast": "per_token"},
    {"broadcast": "softmax", "init": "learned"},
    {"rep_pos": True},
    {"dwconv": 3},
    {"kappa": 0.5},
    {"iterations": 2, "rep_norm": "layer", "broadcast": "per_token", "dwconv": 5, "stop_gradient": True},
]


@pytest.mark.parametrize("options", LAYERS)
def test_every_parameter_learns_and_padding_is_left_alone(options):
    layer = CBSA(16, 2, representatives=(2, 3), num_prefix_tokens=2, **options).double()
    x = torch.randn(2, 2 + 20, 16, dtype=torch.float64)
    layer(x, (4, 5)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    mask = torch.ones(2, 22, dtype=torch.bool)
    mask[0, 17:] = False
    out = layer(x, (4, 5), mask)
    assert (out[0, 17:] == 0).all()
    assert_close(out[1], layer(x[1:], (4, 5))[0], 1e-12)


@pytest.mark.parametrize("options", LAYERS)
def test_the_fused_form_is_the_same_layer(options):
    """Stop-gradient on and off, learned and pooled representatives, offsets."""
    plain, fused = (
        CBSA(16, 2, representatives=(2, 3), impl=impl, **options).double() for impl in ("reference", "sdpa")
    )
    with torch.no_grad():
        if plain.rep_pos is not None:
            plain.rep_pos.normal_()
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(2, 21, 16, dtype=torch.float64, requires_grad=True)
    results = []
    for layer in (plain, fused):
        out = layer(x, (4, 5))
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, 1e-10)


@pytest.mark.parametrize("name", ["cbsa", "agent", "mssa"])
@pytest.mark.parametrize("size", [3, 5])
def test_convolution_is_added_to_the_heads(name, size):
    layer = build_attention(name, 16, 2, dwconv=size).double()
    plain = build_attention(name, 16, 2).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 1 + 20, 16, dtype=torch.float64)
    w = layer.proj(x)[:, 1:].transpose(1, 2).reshape(2, 16, 4, 5)
    maps = F.conv2d(w, layer.local.conv.weight, padding=size // 2, groups=16)
    nearby = F.pad(maps.flatten(2).transpose(1, 2), (0, 0, 1, 0))
    assert_close(layer(x, (4, 5)), plain(x, (4, 5)) + nearby @ layer.to_out.weight.T, 1e-12)


def test_offsets_of_representatives_begin_at_zero_and_are_added():
    layer, plain = CBSA(16, 2, representatives=(2, 3), rep_pos=True), CBSA(16, 2, representatives=(2, 3))
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 17, 16)
    assert_close(layer(x), plain(x), 1e-5)
    with torch.no_grad():
        layer.rep_pos.normal_()
    (w,) = layer.project(x)
    reps = plain.initial_representatives(w) + layer.rep_pos
    expected = contract_broadcast(w, reps, layer.step_rep, layer.step_out)
    assert_close(layer.attend((w,), None, None), expected, 1e-5)


def test_convolution_over_a_sequence():
    layer = CBSA(16, 2, representatives=4, dwconv=3, num_prefix_tokens=0)
    assert layer.local.conv.weight.shape == (16, 1, 3)
    assert layer(torch.randn(2, 11, 16)).shape == (2, 11, 16)


def test_a_grid_of_another_rank_is_named():
    with pytest.raises(ValueError, match=r"grid=\(16,\): the convolution runs over 2 axes"):
        MSSA(16, 2, dwconv=3)(torch.randn(1, 17, 16), (16,))


@pytest.mark.parametrize("options", OPTIONS)
def test_probes_see_what_the_layer_computes(options):
    """The parts that probes put together are the operator."""
    layer = CBSA(16, 2, representatives=(2, 3), **options).double()
    x = torch.randn(2, 1 + 20, 16, dtype=torch.float64)
    probed = OwnLayer(DecoderLayer(layer))
    streams = probed.streams(x)
    found = probed.extraction(streams, (4, 5))
    _, contracted = found.representatives()
    out = found.step_out[:, None, None] * (found.broadcast.mT @ contracted)
    assert_close(out, layer.attend(streams, (4, 5), None), 1e-12)


def test_fixed_steps_are_no_parameters_and_are_kept_with_the_weights():
    layer = CBSA(16, 2, kappa=-1)
    assert "step_out" not in dict(layer.named_parameters())
    assert layer.state_dict()["step_out"].tolist() == [-1, -1]
    layer.reset_parameters()
    assert layer.step_out.tolist() == [-1, -1]
    free = CBSA(16, 2)
    free.load_state_dict(layer.state_dict())
    x = torch.randn(1, 17, 16)
    assert torch.equal(layer(x), free(x))


def test_fixed_steps_have_no_gradient_in_the_fused_form_either():
    plain, fused = (CBSA(16, 2, kappa=0.5, impl=impl) for impl in ("reference", "sdpa"))
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(2, 17, 16)
    gradients = [
        torch.autograd.grad(layer(x).square().sum(), list(layer.parameters())) for layer in (plain, fused)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, 1e-4)


def test_steps_begin_where_they_are_told_to():
    layer = CBSA(16, 2, step_init=0.5)
    assert layer.step_rep.tolist() == layer.step_out.tolist() == [0.5, 0.5]
    assert CBSA(16, 2, step_init=0.5, kappa=2).step_out.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"broadcast": "tokens"}, "broadcast='tokens': expected one of 'transpose'"),
        ({"rep_norm": "batch"}, "rep_norm='batch': expected one of 'none'"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"dwconv": 4}, "kernel_size=4: expected an odd number"),
        ({"kappa": float("inf")}, "kappa must be finite"),
        ({"rep_pos": True, "init": "learned"}, "rep_pos=True goes with init='pool'"),
    ],
)
def test_bad_options_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        CBSA(16, 2, **arguments)


def test_a_query_has_no_grid_to_convolve_over():
    layer = MSSA(16, 2, dwconv=3)
    with pytest.raises(ValueError, match="use dwconv=0"):
        layer(torch.randn(1, 17, 16), query=torch.randn(1, 3, 16))


SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 7}


def test_the_papers_models_are_what_they_were():
    names = set(create_model("cbt_tiny_patch4_32", **SMALL).state_dict())
    assert not [name for name in names if "reg_token" in name or "local" in name]
    assert {"blocks.0.attn.step_rep", "blocks.0.attn.step_out", "cls_token", "pos_embed"} <= names


@pytest.mark.parametrize("name", ["cbt_tiny_patch4_32", "crate_tiny_patch4_32"])
def test_registers_are_tokens_that_no_classifier_sees(name):
    model = create_model(name, **SMALL, reg_tokens=3, global_pool="avg")
    images = torch.randn(2, 3, 32, 32)
    assert model.num_prefix_tokens == 4
    assert model.forward_features(images).shape == (2, 4 + 64, 16)
    maps = model.forward_intermediates(images, intermediates_only=True)
    assert maps[0].shape == (2, 16, 8, 8)
    model(images).sum().backward()
    assert model.reg_token.grad.abs().max() > 0
    assert "reg_token" in model.no_weight_decay()
    before = model(images)
    with torch.no_grad():
        model.reg_token *= -3  # norms do not see a common shift
    assert (model(images) - before).abs().max() > 1e-6


@pytest.mark.parametrize(
    "options",
    [{"iterations": 2}, {"broadcast": "per_token"}, {"broadcast": "softmax", "iterations": 2}],
)
def test_costs_are_those_that_are_counted(options):
    def make(**kwargs):
        return create_model("cbt_tiny_patch4_32", **SMALL, attention_kwargs=kwargs)

    counted = counted_macs(make(**options), 32) - counted_macs(make(), 32)
    closed = [closed_form_macs(make(**kwargs), 32, paper_rule=False) for kwargs in (options, {})]
    assert closed[0] - closed[1] == counted
    more = pairwise_similarities(make(**options), 32) - pairwise_similarities(make(), 32)
    assert more == (options.get("iterations", 1) - 1) * 2 * 2 * 16 * 65


def test_costs_of_a_convolution():
    plain, local = (
        create_model("crate_tiny_patch4_32", **SMALL, attention_kwargs=kwargs)
        for kwargs in ({}, {"dwconv": 3})
    )
    more = closed_form_macs(local, 32) - closed_form_macs(plain, 32)
    assert more == 2 * 64 * 9 * 16 == counted_macs(local, 32) - counted_macs(plain, 32)


def test_small_embeddings_leave_the_steps_alone():
    torch.manual_seed(0)
    model = create_model("cbt_tiny_patch4_32", **SMALL, weight_init="small_embeddings")
    assert model.pos_embed.std() < 0.03
    assert model.blocks[0].attn.step_rep.detach().sub(1).abs().max() > 1e-3
