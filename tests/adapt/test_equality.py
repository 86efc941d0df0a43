"""The exact cases in which an adapted model is the original function; docs/adapt.md lists them."""

import pytest
import torch

import cbsa
from tests.adapt.vits import KINDS, images, make
from tests.compare import assert_close, relative_error


@pytest.mark.parametrize("kind", KINDS)
def test_no_layers_and_softmax(kind):
    model = make(kind)
    pixels = images(model)
    original = model(pixels)
    assert torch.equal(cbsa.adapt(model, "cbsa", layers=[], copy=True)(pixels), original)
    assert torch.equal(cbsa.adapt(model, "softmax", copy=True)(pixels), original)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("num_reg", [0, 4])
def test_agent_with_all_tokens_where_every_query_finds_itself(num_reg, impl):
    """Queries of one norm (normalised, no affine part): the largest product of a query is with itself."""
    model = make(qk_norm=True, reg_tokens=num_reg)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.q_norm.weight.fill_(1)
            block.attn.q_norm.bias.fill_(0)
    pixels = images(model)
    options = {"representatives": None, "impl": impl, "copy": True}
    sharp = cbsa.adapt(model, "agent", broadcast_scale=1e6, **options)
    assert_close(sharp(pixels), model(pixels), 1e-10)
    assert relative_error(cbsa.adapt(model, "agent", **options)(pixels), model(pixels)) > 1e-3


@pytest.mark.parametrize(("style", "kernel"), [("agent", "relu"), ("linear", "relu"), ("linear", "elu")])
def test_keys_that_are_all_one(style, kernel):
    """Every weight is 1/N then, in each of these: the values' mean."""
    model = make("dinov2 registers")
    with torch.no_grad():
        for block in model.blocks:
            dim = block.attn.qkv.in_features
            block.attn.qkv.weight[dim : 2 * dim] = 0
            block.attn.qkv.bias[: 2 * dim].abs_().add_(9)  # a positive channel for ReLU to see
    pixels = images(model)
    adapted = cbsa.adapt(model, style, kernel=kernel, representatives=(2, 2), copy=True)
    assert_close(adapted(pixels), model(pixels), 1e-10)
    star = cbsa.adapt(model, "cbsa", representatives=(2, 2), copy=True)
    assert relative_error(star(pixels), model(pixels)) > 1e-3  # its representatives keep the queries


@pytest.mark.parametrize("style", ["agent", "linear"])
def test_a_single_token(style):
    model = make("siglip", img_size=16, global_pool="avg")
    pixels = images(model)
    assert_close(cbsa.adapt(model, style, kernel="elu", copy=True)(pixels), model(pixels), 1e-10)
    assert relative_error(cbsa.adapt(model, "cbsa", copy=True)(pixels), model(pixels)) > 1e-3
