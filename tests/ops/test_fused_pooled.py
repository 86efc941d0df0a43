"""Pooling and operator as one, in Triton: on a GPU, and everywhere else in Triton's interpreter."""

import math
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cbsa.layers import CBSA
from cbsa.ops import contract_broadcast, pool_tokens
from tests.compare import (
    KERNEL_CASES,
    KERNEL_DEVICES,
    KERNEL_DRAWS,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_pooled
from cbsa.ops.kernels import launch

NAMES = ("dw", "dstep_rep", "dstep_out")
# grid, representatives, index of the first token that is pooled, tokens after the last
LAYOUTS = [
    ((7, 5), (3, 4), 1, 0),
    ((6, 6), (3, 2), 0, 1),  # the authors' pooling
    ((2, 2), (4, 4), 2, 0),  # more representatives than tokens
    ((13,), (5,), 1, 0),
]


def draw(batch, heads, n, d, device):
    w = torch.randn(batch, n, heads, d, device=device).transpose(1, 2)
    return [w, *torch.randn(2, heads, device=device)]


def fused(w, step_rep, step_out, grid, size, first, contraction="softmax"):
    scale = w.shape[-1] ** -0.5
    return fused_pooled.pooled_contract_broadcast(
        w, step_rep, step_out, grid, size, first, scale, contraction
    )


def plain(w, step_rep, step_out, grid, size, first, contraction="softmax"):
    batch, heads, _, d = w.shape
    tokens = w.transpose(1, 2).flatten(2)[:, first : first + math.prod(grid)]
    reps = pool_tokens(tokens, grid, size).view(batch, -1, heads, d).transpose(1, 2)
    return contract_broadcast(w, reps, step_rep, step_out, contraction=contraction, impl="reference")


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize("regime", ["whole", "split"])
@pytest.mark.parametrize(("grid", "size", "first", "after"), LAYOUTS)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(
    grid, size, first, after, regime, device, dtype, monkeypatch
):
    monkeypatch.setattr(launch, "is_whole", lambda w, m: regime == "whole")
    layout = {"grid": grid, "size": size, "first": first}
    make = partial(draw, 2, 2, first + math.prod(grid) + after, 12, device)
    on_device = partial(plain, **layout)
    assert_as_good_as(
        partial(fused, **layout), on_device, on_device, make, dtype, NAMES,
        floor_ulps=20 if dtype == torch.float32 else 0.5, draws=KERNEL_DRAWS,
    )  # fmt: skip


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_strides(device):
    layout = {"grid": (4, 5), "size": (2, 2), "first": 1}
    w, *steps = draw(2, 2, 21, 8, device)
    expected = fused(w, *steps, **layout)
    for other in (w.contiguous(), w.mT.contiguous().mT, torch.stack([w, w], -1)[..., 0]):
        assert torch.equal(fused(other, *steps, **layout), expected)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_without_contraction(device):
    layout = {"grid": (4, 4), "size": (2, 2), "first": 1, "contraction": "none"}
    inputs = draw(1, 2, 17, 8, device)
    weight = torch.randn_like(inputs[0])
    wide = [x.double() for x in inputs]
    truth = value_and_grads(partial(plain, **layout), wide, weight.double())
    results = value_and_grads(partial(fused, **layout), inputs, weight)
    for name, a, b in zip(("output", *NAMES), results, truth, strict=True):
        assert_close(a, b, 1e-5, name)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("whole", [True, False])
def test_every_element_is_written_and_the_same_every_time(whole, device, monkeypatch):
    """Sizes fill no block."""
    monkeypatch.setattr(launch, "is_whole", lambda w, m: whole)
    inputs = draw(2, 1, 1 + 7 * 10, 20, device)
    run = partial(fused, grid=(7, 10), size=(3, 5), first=1)
    assert_written_and_repeatable(run, inputs, torch.randn_like(inputs[0]))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_more_representatives_than_a_block_holds(device):
    inputs = draw(1, 1, 1 + 10 * 11, 16, device)
    layout = {"grid": (10, 11), "size": (9, 9), "first": 1}
    weight = torch.randn_like(inputs[0])
    truth = value_and_grads(partial(plain, **layout), [x.double() for x in inputs], weight.double())
    results = value_and_grads(partial(fused, **layout), inputs, weight)
    for name, a, b in zip(("output", *NAMES), results, truth, strict=True):
        assert_close(a, b, 1e-5, name)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_an_empty_batch(device):
    inputs = draw(0, 2, 17, 8, device)
    run = partial(fused, grid=(4, 4), size=(2, 2), first=1)
    out, *grads = value_and_grads(run, inputs, inputs[0])
    assert out.shape == (0, 2, 17, 8)
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("keep", [False, True])
def test_the_operator_is_well_formed(keep, device):
    inputs = [x.requires_grad_() for x in draw(1, 2, 17, 16, device)]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    arguments = (*inputs, (4, 4), (4, 4), 1, 0.25, True, keep)
    torch.library.opcheck(fused_pooled._forward, arguments, test_utils=tests)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_compiles_into_one_graph_with_the_same_bits(device):
    inputs = draw(1, 2, 17, 16, device)
    weight = torch.randn_like(inputs[0])
    run = partial(fused, grid=(4, 4), size=(2, 2), first=1)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(run, inputs, weight), strict=True
    ):
        assert torch.equal(a, b)


def test_flops_are_counted_like_the_references():
    inputs = draw(1, 2, 17, 8, KERNEL_DEVICES[0])
    counts = []
    for function in (fused, plain):
        with FlopCounterMode(display=False) as counter:
            value_and_grads(partial(function, grid=(4, 4), size=(2, 2), first=1), inputs, inputs[0])
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("legacy", [False, True])
def test_the_layer_takes_it_on_a_gpu(legacy, monkeypatch):
    calls = []
    run = fused_pooled.pooled_contract_broadcast
    monkeypatch.setattr(fused_pooled, "pooled_contract_broadcast", lambda *a: calls.append(1) or run(*a))
    layer = CBSA(48, 3, representatives=(3, 3), legacy_pool=legacy).cuda()
    x = torch.randn(2, 50, 48, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    assert calls
    assert out.dtype == torch.bfloat16
    layer.impl = "reference"
    assert_close(out, layer(x), 2e-2)
