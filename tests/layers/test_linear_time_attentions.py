"""TSSA, linear attention and the orthogonal variants against straight-line forms."""

import copy

import pytest
import torch

from cbsa.layers import TSSA, ChannelCBSA, LinearAttention, LinearCBSA
from cbsa.ops import linear_attention
from tests.compare import assert_close


def heads_of(weight, x, heads):
    b, n, _ = x.shape
    return (x @ weight.T).reshape(b, n, heads, -1).permute(0, 2, 1, 3)


def test_tssa_is_tosts_equation():
    """Π, Π̂ and the output of ToST (Wu et al., ICLR 2025), entry by entry for one image."""
    layer, x = TSSA(12, 3).double(), torch.randn(1, 7, 12, dtype=torch.float64)
    with torch.no_grad():
        layer.temp.copy_(torch.tensor([[0.5], [1.0], [2.0]]))
    w = heads_of(layer.proj.weight, x, 3)[0]  # (h, n, d)
    logits = torch.zeros(3, 7, dtype=torch.float64)
    for h in range(3):
        for d in range(4):
            column = w[h, :, d]
            logits[h] += layer.temp[h].item() * column**2 / (column**2).sum()
    pi = logits.softmax(0)
    out = torch.zeros_like(w)
    for h in range(3):
        share = pi[h] / (pi[h].sum() + 1e-8)
        for d in range(4):
            moment = (share * w[h, :, d] ** 2).sum()
            out[h, :, d] = -w[h, :, d] * pi[h] / (1 + moment)
    expected = out.permute(1, 0, 2).reshape(1, 7, 12) @ layer.to_out.weight.T + layer.to_out.bias
    assert_close(layer(x), expected, 1e-12)


def test_tssa_number_of_parameters():
    assert sum(p.numel() for p in TSSA(192, 3).parameters()) == 2 * 192 * 192 + 192 + 3


@pytest.mark.parametrize("kernel", ["elu", "relu"])
def test_linear_attention_is_its_quadratic_form(kernel):
    layer, x = LinearAttention(12, 3, kernel=kernel).double(), torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = (
        (x @ w.T + b).reshape(2, 9, 3, 4).permute(0, 2, 1, 3)
        for w, b in zip(layer.proj.weight.chunk(3), layer.proj.bias.chunk(3), strict=True)
    )
    phi = {"elu": lambda t: torch.where(t > 0, t + 1, t.exp()), "relu": lambda t: t.clamp_min(0)}[kernel]
    weights = phi(q) @ phi(k).mT
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
    expected = (weights @ v).permute(0, 2, 1, 3).reshape(2, 9, 12) @ layer.to_out.weight.T
    assert_close(layer(x), expected + layer.to_out.bias, 1e-9)


def test_relu_kernel_without_a_positive_channel_is_finite():
    layer = LinearAttention(12, 3, kernel="relu")
    with torch.no_grad():
        layer.proj.bias.fill_(-100)
    x = torch.randn(2, 9, 12, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert_close(out, layer.to_out.bias.expand_as(out), 1e-6)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kernel", ["elu", "relu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_linear_attention_with_small_weights(kernel, dtype):
    """Queries that attend weakly to everything are normalised all the same."""
    layer, x = LinearAttention(12, 3, kernel=kernel), torch.randn(2, 9, 12)
    with torch.no_grad():
        layer.proj.weight[:24] *= 0.1
        layer.proj.bias[:12] -= 4 if kernel == "elu" else 0
    layer, x = layer.to(dtype), x.to(dtype)
    expected = copy.deepcopy(layer).double()(x.double())
    assert_close(layer(x), expected, 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("kernel", ["elu", "relu"])
def test_linear_attention_over_many_tokens_in_float16(kernel):
    layer, x = LinearAttention(12, 3, kernel=kernel), torch.randn(1, 70_000, 12)
    expected = layer.double()(x.half().double())
    assert_close(layer.half()(x.half()), expected, 0.02)


@pytest.mark.parametrize("kernel", ["elu", "relu"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_linear_attention_does_not_hide_nan(which, kernel):
    """A query's in its own output; a key's and a value's, which all queries read, in every one."""
    streams = [torch.rand(1, 1, 5, 4) for _ in range(3)]
    streams[which][0, 0, 2, 1] = torch.nan
    found = linear_attention(*streams, kernel=kernel)[0, 0].isnan().any(-1)
    assert found.tolist() == [which > 0 or n == 2 for n in range(5)]


def test_kernel_is_named():
    with pytest.raises(ValueError, match="kernel='softmax': expected one of 'elu', 'relu'"):
        LinearAttention(12, 3, kernel="softmax")


@pytest.mark.parametrize("cls", [LinearCBSA, ChannelCBSA])
def test_orthogonal_variants_with_free_output(cls):
    """κ and the over-parameterised projection around the operator; the operator itself is in the theorems."""
    layer, x = cls(12, 3, eps=0.5).double(), torch.randn(2, 9, 12, dtype=torch.float64)
    w = heads_of(layer.proj.weight, x, 3)
    covariance = w.mT @ w
    if cls is ChannelCBSA:
        covariance = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    shrink = torch.linalg.inv(torch.eye(4, dtype=torch.float64) + covariance / 0.25)
    out = layer.step_out.view(-1, 1, 1) * (w @ shrink)
    expected = out.permute(0, 2, 1, 3).reshape(2, 9, 12) @ layer.to_out.weight.T + layer.to_out.bias
    assert_close(layer(x), expected, 1e-12)


@pytest.mark.parametrize("cls", [LinearCBSA, ChannelCBSA])
def test_nothing_quadratic_in_tokens(cls):
    """100,000 tokens: an N×N matrix would be 40 GB."""
    x = torch.randn(1, 100_000, 8, requires_grad=True)
    cls(8, 2)(x).square().sum().backward()
    assert x.grad.isfinite().all()


def test_linear_cbsa_has_finite_gradients_where_eigenvalues_coincide():
    x = torch.eye(8).repeat(3, 1)[None].requires_grad_()
    layer = LinearCBSA(8, 1, tied=True)
    with torch.no_grad():
        layer.proj.weight.copy_(torch.eye(8))
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all()
