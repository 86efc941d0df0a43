"""BatchNorm with GELU in Triton: on a GPU, and everywhere else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.compare import (
    KERNEL_CASES,
    KERNEL_DEVICES,
    assert_as_good_as,
    assert_close,
    assert_written_and_repeatable,
    value_and_grads,
)

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops import fused_batch_norm

SHAPES = [(2, 48, 5, 7), (1, 5, 3, 3), (3, 256, 1, 2), (2, 1, 40, 31)]  # B, C, h, w
EPS = 1e-5


def draw(batch, channels, height, width, device):
    """Maps that are not centred, and parameters."""
    y = 0.5 + torch.randn(batch, channels, height, width, device=device)
    return y.to(memory_format=torch.channels_last), *torch.randn(2, channels, device=device).unbind()


def run(y, gamma, beta):
    return fused_batch_norm.batch_norm_gelu(y, gamma, beta, EPS)[0]


def plain(y, gamma, beta):
    return F.gelu(F.batch_norm(y, None, None, gamma, beta, training=True, eps=EPS))


@pytest.mark.parametrize(("device", "dtype"), KERNEL_CASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(shape, device, dtype):
    assert_as_good_as(
        run, plain, plain, partial(draw, *shape, device), dtype, ("dy", "dgamma", "dbeta"),
        floor_ulps=32 if dtype == torch.float32 else 1,
    )  # fmt: skip


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("centre", [0, 1000])
def test_statistics(device, centre):
    """Mean and biased variance, also of maps far from 0."""
    y, gamma, beta = draw(3, 20, 9, 11, device)
    y += centre
    _, mean, var = fused_batch_norm.batch_norm_gelu(y, gamma, beta, EPS)
    assert_close(mean, y.double().mean((0, 2, 3)), 1e-6)
    assert_close(var, y.double().var((0, 2, 3), correction=0), 1e-5)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_every_element_is_written_and_the_same_every_time(device):
    inputs = draw(2, 20, 7, 11, device)
    assert_written_and_repeatable(run, inputs, torch.randn_like(inputs[0]))


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_any_layout(device):
    y, gamma, beta = draw(2, 6, 5, 4, device)
    weight = torch.randn_like(y)
    expected = value_and_grads(run, [y, gamma, beta], weight)
    assert expected[0].is_contiguous(memory_format=torch.channels_last)
    others = value_and_grads(run, [y.contiguous(), gamma, beta], weight.contiguous())
    for a, b in zip(expected, others, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_maps(device):
    inputs = draw(0, 8, 4, 4, device)
    out, *grads = value_and_grads(run, inputs, torch.empty(0, 8, 4, 4, device=device))
    assert out.shape == (0, 8, 4, 4)
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_operators_are_well_formed_and_compile(device):
    y, gamma, beta = draw(2, 12, 3, 5, device)
    weight, mean = torch.randn_like(y), torch.randn_like(gamma)
    tests = ("test_schema", "test_faketensor")
    for operator, arguments in (
        (fused_batch_norm._moments, (y,)),
        (fused_batch_norm._forward, (y, gamma, beta)),
        (fused_batch_norm._gradient_sums, (weight, y, gamma, beta, mean)),
        (fused_batch_norm._backward, (weight, y, gamma, beta, mean, mean)),
    ):
        torch.library.opcheck(operator, arguments, test_utils=tests)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = [value_and_grads(f, [y, gamma, beta], weight) for f in (compiled, run)]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
