"""MSSA and MHSA against PyTorch's and timm's own multi-head attention."""

import functools

import pytest
import torch
from torch import nn

from cbsa.layers import MHSA, MSSA
from cbsa.layers.softmax import softmax_attention
from tests.compare import assert_close


def torch_attention(in_weight, in_bias, out_proj, heads):
    """nn.MultiheadAttention with given projections."""
    dim = out_proj.weight.shape[0]
    module = nn.MultiheadAttention(dim, heads, bias=True, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(in_weight)
        module.in_proj_bias.copy_(in_bias)
        module.out_proj.weight.copy_(out_proj.weight)
        module.out_proj.bias.copy_(out_proj.bias)
    return module


@pytest.mark.parametrize("masked", [False, True])
def test_mssa_is_attention_with_one_projection(masked):
    layer, x = MSSA(24, 3).double(), torch.randn(2, 11, 24, dtype=torch.float64)
    mask = torch.rand(2, 11) < 0.6 if masked else torch.ones(2, 11, dtype=torch.bool)
    mask[:, 0] = True
    zeros = torch.zeros(72, dtype=torch.float64)
    theirs = torch_attention(layer.proj.weight.repeat(3, 1), zeros, layer.to_out, 3)
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    assert_close(layer(x, mask=mask if masked else None)[mask], expected[mask], 1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_mssa_with_a_query_is_cross_attention(masked, tied):
    """Bases U serve query, key and value; one head after the other, in float64."""
    layer = MSSA(24, 3, head_dim=5, tied=tied).double()
    x, query = torch.randn(2, 11, 24, dtype=torch.float64), torch.randn(2, 4, 24, dtype=torch.float64)
    mask = torch.rand(2, 11) < 0.6 if masked else torch.ones(2, 11, dtype=torch.bool)
    mask[:, 0] = True
    back = layer.proj.weight.T if tied else layer.to_out.weight
    expected = torch.zeros(2, 4, 24, dtype=torch.float64)
    for head in range(3):
        rows = slice(5 * head, 5 * head + 5)
        u = layer.proj.weight[rows]
        scores = (query @ u.T @ u @ x.mT / 5**0.5).masked_fill(~mask[:, None], -torch.inf)
        expected += scores.softmax(-1) @ x @ u.T @ back[:, rows].T
    expected = layer.step_out * expected if tied else expected + layer.to_out.bias
    poisoned = x.masked_fill(~mask[..., None], torch.nan)
    assert_close(layer(poisoned, mask=mask if masked else None, query=query), expected, 1e-12)
    assert_close(layer(x, query=x), layer(x), 1e-12)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (torch.zeros(2, 4, 23), {}, r"query must have shape \(B, N, 24\) with N >= 1, got \(2, 4, 23\)"),
        (torch.zeros(3, 4, 24), {}, "x and query must have one batch size, got 2 and 3"),
        (torch.zeros(2, 4, 24), {"contraction": "exact"}, "query= needs contraction='softmax'"),
    ],
)
def test_bad_queries_are_named(query, options, message):
    with pytest.raises(ValueError, match=message):
        MSSA(24, 3, **options)(torch.zeros(2, 11, 24), query=query)


@pytest.mark.parametrize("masked", [False, True])
def test_mhsa_is_torch_attention(masked):
    layer, x = MHSA(24, 3).double(), torch.randn(2, 11, 24, dtype=torch.float64)
    mask = torch.rand(2, 11) < 0.6 if masked else torch.ones(2, 11, dtype=torch.bool)
    mask[:, 0] = True
    theirs = torch_attention(layer.proj.weight, layer.proj.bias, layer.to_out, 3)
    expected, _ = theirs(x, x, x, key_padding_mask=~mask)
    assert_close(layer(x, mask=mask if masked else None)[mask], expected[mask], 1e-12)


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_mhsa_is_timms_attention(qkv_bias):
    from timm.layers import Attention as TimmAttention

    layer, theirs = MHSA(24, 3, qkv_bias=qkv_bias), TimmAttention(24, num_heads=3, qkv_bias=qkv_bias)
    with torch.no_grad():
        theirs.qkv.load_state_dict(layer.proj.state_dict())
        theirs.proj.load_state_dict(layer.to_out.state_dict())
    x = torch.randn(2, 11, 24)
    assert_close(layer(x), theirs(x), 1e-6)


def test_number_of_parameters():
    assert sum(p.numel() for p in MSSA(192, 3).parameters()) == 2 * 192 * 192 + 192
    assert sum(p.numel() for p in MSSA(192, 3, tied=True).parameters()) == 192 * 192 + 1


def test_exact_mssa_counts_real_tokens_only():
    """c = p/(N ε²) with the number of real tokens, row by row."""
    layer, x = MSSA(24, 3, contraction="exact").double(), torch.randn(2, 11, 24, dtype=torch.float64)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, 4:] = False
    out = layer(x, mask=mask)
    assert_close(out[0], layer(x[:1])[0], 1e-12)
    assert_close(out[1, :4], layer(x[1:, :4])[0], 1e-12)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="contraction='none': expected one of 'softmax', 'exact'"):
        MSSA(24, 3, contraction="none")


@pytest.mark.parametrize("masked", [False, True])
def test_training_in_bfloat16_on_a_cpu_is_as_exact_as_plain_pytorch(masked):
    """Outputs and all gradients, beside the fused kernel in float64; a sequence of padding alone too."""
    dtype = torch.bfloat16
    shapes = ((3, 2, 7, 16), (3, 2, 37, 16), (3, 2, 37, 16))
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    grad = torch.randn(shapes[0], dtype=dtype)
    mask = torch.rand(3, 37) < 0.5 if masked else None
    if mask is not None:
        mask[0] = False

    def results(attend, dtype):
        q, k, v = (x.to(dtype).requires_grad_() for x in given)
        out = attend(q, k, v)
        return [out, *torch.autograd.grad(out, (q, k, v), grad.to(dtype))]

    keys = None if mask is None else (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
    ours = results(lambda q, k, v: softmax_attention(q, k, v, mask), dtype)
    fused = functools.partial(nn.functional.scaled_dot_product_attention, attn_mask=keys)

    def plain(q, k, v):
        scores = q @ k.mT / 4  # p = 16
        return (scores if keys is None else scores.masked_fill(~keys, -torch.inf)).softmax(-1) @ v

    for mine, theirs, truth in zip(ours, results(plain, dtype), results(fused, torch.float64), strict=True):
        assert mine.dtype == dtype
        assert (mine - truth).norm() <= 2 * (theirs - truth).norm()


def test_long_sequences_hold_no_matrix_of_weights(monkeypatch):
    q = torch.randn(1, 1, 9, 8, dtype=torch.bfloat16, requires_grad=True)
    assert "Flash" not in type(softmax_attention(q, q, q).grad_fn).__name__
    for limit, value in (("_HELD", 80), ("_SHORT", 8)):
        with monkeypatch.context() as less:
            less.setattr(f"cbsa.layers.softmax.{limit}", value)
            assert "Flash" in type(softmax_attention(q, q, q).grad_fn).__name__
