"""Coding rates within heads in Triton: on a GPU, and everywhere else in Triton's interpreter."""

import pytest
import torch
from torch import nn

from tests.compare import KERNEL_DEVICES, assert_close

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops.fused_rates import head_coding_rates

SHAPES = [(2, 3, 33, 24, 8), (1, 2, 1, 10, 5), (1, 1, 130, 100, 64), (2, 2, 64, 64, 16)]  # B, H, N, D, p


def naive(x, norm, weight, bias, heads, eps):
    """½ logdet(I + p/(N ε²)·W Wᵀ) from the spectrum of the N×N matrix, in float64."""
    w = norm.double()(x.double()) @ weight.double().T + (0 if bias is None else bias.double())
    w = w.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, N, p)
    n, p = w.shape[-2:]
    both = torch.stack([w, w / w.norm(dim=-1, keepdim=True).clamp_min(1e-12)], 2)
    spectrum = torch.linalg.eigvalsh(both @ both.mT).clamp_min(0)
    return 0.5 * (p / (n * eps**2) * spectrum).log1p().sum(-1)


def problem(batch, heads, n, d, p, device):
    norm = nn.LayerNorm(d).to(device)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias)
    return 2 + torch.randn(batch, n, d, device=device), norm, torch.randn(heads * p, d, device=device)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_against_the_naive_formula(shape, with_bias, device):
    x, norm, weight = problem(*shape, device)
    bias = torch.randn(len(weight), device=device) if with_bias else None
    rates = head_coding_rates(x, norm, weight, bias, shape[1], 0.1)
    assert_close(rates, naive(x, norm, weight, bias, shape[1], 0.1), 1e-4)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_tokens_near_a_line(device):
    """Compressed tokens, where the Gram matrix is far from well conditioned: the stated precision holds."""
    x, norm, weight = problem(2, 2, 150, 64, 32, device)
    line = torch.randn(64, device=device)
    x = line * torch.randn(2, 150, 1, device=device) + 1e-3 * x
    for eps, tolerance in ((0.1, 1e-3), (0.01, 0.03)):
        rates = head_coding_rates(x, norm, weight, None, 2, eps)
        assert_close(rates, naive(x, norm, weight, None, 2, eps), tolerance)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes_and_strides(device, dtype):
    x, norm, weight = problem(2, 2, 20, 24, 8, device)
    x = x.to(dtype)
    expected = head_coding_rates(x, norm, weight, None, 2, 0.1)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(head_coding_rates(strided, norm, weight, None, 2, 0.1), expected)
    assert_close(expected, naive(x, norm, weight, None, 2, 0.1), 1e-4)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_images(device):
    x, norm, weight = problem(0, 2, 5, 16, 8, device)
    assert head_coding_rates(x, norm, weight, None, 2, 0.1).shape == (0, 2, 2)
