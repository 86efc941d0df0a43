"""Coding rates within heads in Triton: on a GPU, and everywhere else in Triton's interpreter."""

import pytest
import torch

from tests.compare import KERNEL_DEVICES, assert_close

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")
from cbsa.ops.fused_rates import gram_size, half_log_determinants, head_grams

SHAPES = [(2, 3, 33, 8), (1, 2, 1, 5), (1, 1, 130, 64), (2, 2, 64, 16)]  # B, H, N, p


def head_coding_rates(w, eps):
    """Coding rates of the tokens w (B, H, N, p) of each head, as they are and of unit length: (B, H, 2)."""
    batch, heads, n, p = w.shape
    grams = w.new_empty((batch, heads, 2, gram_size(p), gram_size(p)), dtype=torch.float32)
    head_grams(w, grams)
    return half_log_determinants(grams, p / (n * eps**2))


def naive(w, eps):
    """½ logdet(I + p/(N ε²)·W Wᵀ) from the spectrum of the N×N matrix, in float64."""
    w = w.double()
    n, p = w.shape[-2:]
    both = torch.stack([w, w / w.norm(dim=-1, keepdim=True).clamp_min(1e-12)], 2)
    spectrum = torch.linalg.eigvalsh(both @ both.mT).clamp_min(0)
    return 0.5 * (p / (n * eps**2) * spectrum).log1p().sum(-1)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("eps", [0.05, 0.1, 1.0])
def test_against_the_naive_formula(shape, eps, device):
    w = torch.randn(shape, device=device) * torch.rand(shape[-1], device=device)
    assert_close(head_coding_rates(w, eps), naive(w, eps), 1e-3)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize(("width", "tolerance"), [(1e-2, 4e-3), (1e-3, 2e-2)])
def test_tokens_near_a_line(width, tolerance, device):
    """Compressed tokens, where the Gram matrix is far from well conditioned: the stated precision holds."""
    line = torch.randn(32, device=device)
    w = line * torch.randn(2, 2, 150, 1, device=device) + width * torch.randn(2, 2, 150, 32, device=device)
    assert_close(head_coding_rates(w, 0.1), naive(w, 0.1), tolerance)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes_and_strides(device, dtype):
    w = torch.randn(2, 2, 20, 8, device=device).to(dtype)
    expected = head_coding_rates(w, 0.1)
    strided = w.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)
    assert torch.equal(head_coding_rates(strided, 0.1), expected)
    assert_close(expected, naive(w, 0.1), 1e-3)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_no_images(device):
    assert head_coding_rates(torch.randn(0, 2, 5, 8, device=device), 0.1).shape == (0, 2, 2)


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_every_element_is_written_and_the_same_every_time(device):
    """Sizes fill no block; there is no gradient."""
    w = torch.randn(2, 3, 70, 20, device=device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = (head_coding_rates(w, 0.1) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert first.isfinite().all()
    assert torch.equal(first, second)
