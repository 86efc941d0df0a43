"""The paper's complexity table, counted: PyTorch's flop counter against the closed forms."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from cbsa import ops
from cbsa.layers import CBSA, MHSA, MSSA, TSSA, ChannelCBSA, LinearAttention
from cbsa.ops.reference import contract, extraction_weights


def macs(function, *inputs):
    """Multiply-accumulates of all matrix products in a call."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        function(*inputs)
    return counter.get_total_flops() // 2


GEOMETRIES = [  # heads, p, side of the image in patches, side of the representatives
    (3, 64, 14, 8),
    (6, 64, 32, 8),
    (2, 8, 5, 3),
]


@pytest.mark.parametrize(("heads", "p", "side", "windows"), GEOMETRIES)
def test_sub_operations_of_cbsa(heads, p, side, windows):
    """Per product: extraction and broadcast N·m·d, contraction m²·d (d = H·p, summed over heads)."""
    n, m, d = side**2 + 1, windows**2, heads * p
    w, reps = torch.randn(1, heads, n, p), torch.randn(1, heads, m, p)
    assert macs(lambda: extraction_weights(w, reps, 1.0)) == n * m * d
    assert macs(lambda: contract(reps, "softmax", 1.0, 0.1)) == 2 * m**2 * d
    steps = torch.ones(2, heads).unbind()
    whole = macs(lambda: ops.contract_broadcast(w, reps, *steps, impl="reference"))
    assert whole == 3 * n * m * d + 2 * m**2 * d
    agent = macs(lambda: ops.contract_broadcast(w, reps, *steps, contraction="none", impl="reference"))
    assert agent == 3 * n * m * d


@pytest.mark.parametrize(("heads", "p", "side", "windows"), GEOMETRIES)
def test_layers(heads, p, side, windows):
    """Ω(MSSA) = 2Nd² + 2N²d and Ω(CBSA) = 2Nd² + 3Nmd + 2m²d, plus our pooling as two small products."""
    n, m, d = side**2 + 1, windows**2, heads * p
    x = torch.randn(1, n, d)
    pooling = side * side * windows * d + side * windows * windows * d if side % windows else 0
    cbsa = CBSA(d, heads, representatives=(windows, windows), impl="reference")
    assert macs(cbsa, x) == 2 * n * d**2 + 3 * n * m * d + 2 * m**2 * d + pooling
    assert macs(MSSA(d, heads), x) == 2 * n * d**2 + 2 * n**2 * d
    assert macs(MHSA(d, heads), x) == 4 * n * d**2 + 2 * n**2 * d
    assert macs(TSSA(d, heads), x) == 2 * n * d**2 + n * d
    assert macs(ChannelCBSA(d, heads), x) == 2 * n * d**2
    assert macs(LinearAttention(d, heads), x) == 4 * n * d**2 + 2 * n * d * p + n * d
    assert pooling < 0.1 * macs(cbsa, x)
    sequence = CBSA(d, heads, representatives=64, num_prefix_tokens=0, impl="reference")
    assert macs(sequence, x) == 2 * n * d**2 + 3 * n * 64 * d + 2 * 64**2 * d  # prefix sums: no products


def test_cbsa_is_cheaper_than_mssa_beyond_two_p_tokens():
    """'Provided N > 2d/H = 2p', with m = p, by the closed forms and as counted."""
    p, steps = 64, torch.ones(2, 6).unbind()
    for side, cheaper in ((11, False), (12, True)):  # 121 and 144 tokens around 2p = 128
        w = torch.randn(1, 6, side**2, p)
        cbsa = macs(lambda w=w: ops.contract_broadcast(w, w[:, :, :p], *steps, impl="reference"))
        mssa = macs(lambda w=w: torch.nn.functional.scaled_dot_product_attention(w, w, w))
        assert (cbsa < mssa) is cheaper


@pytest.mark.parametrize("layer", [CBSA(192, 3), TSSA(192, 3), ChannelCBSA(192, 3), LinearAttention(192, 3)])
def test_linear_in_tokens(layer):
    costs = [macs(layer, torch.randn(1, side**2 + 1, 192)) for side in (16, 32, 64)]
    constant = 2 * 64**2 * 192 if isinstance(layer, CBSA) else 0
    assert (costs[2] - constant) / (costs[1] - constant) == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("contraction", ["softmax", "none"])
def test_the_fused_form_reports_what_its_attentions_cost(contraction):
    """Its count is that of the attentions it is made of, by PyTorch's own formulas for attention."""
    batch, heads, n, m, d = 2, 3, 50, 7, 8
    w, reps = torch.randn(batch, heads, n, d, requires_grad=True), torch.randn(batch, heads, m, d)
    steps = torch.ones(2, heads).unbind()
    with FlopCounterMode(display=False) as counter:
        out = ops.contract_broadcast(w, reps, *steps, contraction=contraction, impl="sdpa")
        forward = counter.get_total_flops()
        out.sum().backward()
    tokens, few = (batch, heads, n, d), (batch, heads, m, d)
    extract, broadcast = sdpa_flop_count(few, tokens, tokens), sdpa_flop_count(tokens, few, few)
    contract = sdpa_flop_count(few, few, few) if contraction == "softmax" else 0
    assert forward == extract + broadcast + contract
    backward = extract + 2 * sdpa_backward_flop_count(few, few, tokens, tokens)
    if contraction == "softmax":
        backward += contract + sdpa_backward_flop_count(few, few, few, few)
    assert counter.get_total_flops() - forward == backward
