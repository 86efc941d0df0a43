"""Coding rates within the heads of a layer in Triton kernels, for probes of models on a GPU.

Plain PyTorch would write the normed and the projected tokens, and copies of them in float64, for every point
of a network that is looked at: several times the traffic of the network itself. Here Gram matrices alone
leave the chip. They are taken in float32 (three TF32 products): where tokens are nearly of low rank, c·G has
entries up to 1e6 beside the 1 of the identity, and rates err by up to 1e-3 with the paper's ε of 0.1 (and by
more with a smaller one: c grows with 1/ε²).
"""

import torch
import triton
from torch import Tensor, nn

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import rates

_TOKENS, _CHANNELS = 32, 32  # of a block
MAX_HEAD_DIM, LEAST_EPS = 64, 0.05  # what the kernels are good for


@torch.no_grad()
def head_coding_rates(
    x: Tensor, norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None, heads: int, eps: float
) -> Tensor:
    """Coding rates of the tokens LN(x) Wᵀ + b of each head, as they are and of unit length, (B, H, 2).

    Args:
        x: tokens (B, N, D).
        norm: the LayerNorm before the projection.
        weight: of the projection, (H·p, D) with p ≤ 64.
        bias: of the projection (H·p,), if it has one.
        heads: their number H.
        eps: quantisation precision ε.
    """
    batch, n, d = x.shape
    p = weight.shape[0] // heads
    basis = (weight.float() * norm.weight.float()).T.contiguous()  # γ∘U, (D, H·p)
    along = basis.sum(0)
    offset = weight.float() @ norm.bias.float()
    offset = offset if bias is None else offset + bias.float()
    padded = max(16, triton.next_power_of_2(p))
    grams = x.new_empty((batch, heads, 2, padded, padded), dtype=torch.float32)
    out = x.new_empty((batch, heads, 2), dtype=torch.float32)
    if out.numel() == 0:
        return out
    x = x if x.stride(-1) == 1 else x.contiguous()
    with launched_on(x.device):
        rates.head_grams[(batch * heads,)](
            x, basis, along, offset, grams, heads, n, x.stride(0), x.stride(1), norm.eps,
            D=d, P=p, BP=padded, BN=_TOKENS, BK=_CHANNELS, PRECISION="tf32x3", num_stages=1,
        )  # fmt: skip
        rates.half_log_determinants[(out.numel(),)](grams, out, p / (n * eps**2), BP=padded, num_warps=1)
    return out
