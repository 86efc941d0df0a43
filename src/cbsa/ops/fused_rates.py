"""Coding rates within the heads of a layer in Triton kernels, for probes of models on a GPU.

Plain PyTorch would write tokens of unit length, and copies of all in float64, for every point of a network
that is looked at: several times the traffic of the network itself. Here Gram matrices alone leave the chip.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbsa.ops.custom import launched_on
from cbsa.ops.kernels import rates
from cbsa.ops.kernels.gpu import INTERPRETED
from cbsa.ops.kernels.launch import unit_rows

_TOKENS = 64  # of a block
_HALF = tl.float16 if INTERPRETED else tl.bfloat16  # Triton's interpreter has no bfloat16
MAX_HEAD_DIM, LEAST_EPS = 64, 0.05  # what the kernels are good for


@torch.no_grad()
def head_coding_rates(w: Tensor, eps: float) -> Tensor:
    """Coding rates of the tokens w (B, H, N, p) of each head, as they are and of unit length: (B, H, 2).

    They err by less than 1e-3 for ε ≥ 0.05 and p ≤ 64, and more where tokens are nearly on a line: by 2e-2
    if they are within a thousandth of it.
    """
    batch, heads, n, p = w.shape
    padded = max(16, triton.next_power_of_2(p))
    grams = w.new_empty((batch, heads, 2, padded, padded), dtype=torch.float32)
    out = w.new_empty((batch, heads, 2), dtype=torch.float32)
    if out.numel() == 0:
        return out
    w = unit_rows(w)
    with launched_on(w.device):
        rates.head_grams[(batch * heads,)](
            w, grams, heads, n, *w.stride()[:3], D=p, BD=padded, BN=_TOKENS, HALF=_HALF, num_stages=3
        )
        rates.half_log_determinants[(out.numel(),)](grams, out, p / (n * eps**2), BD=padded, num_warps=1)
    return out
