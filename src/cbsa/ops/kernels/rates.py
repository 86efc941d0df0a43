"""Coding rates of tokens within the heads of a layer: Gram matrices and their determinants.

Products are single TF32 ones. What that costs is small: both factors of a Gram matrix are the same tokens,
cut to 11 bits in the same way, so that it is the exact Gram matrix (summed in float32) of tokens that are
off by 2⁻¹¹ at most; it stays positive, and small eigenvalues change by the square of that.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.blocks import head_of, load_rows


@triton.jit
def head_grams(
    w, grams,
    H, N, w_b, w_h, w_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Σ w wᵀ, and Σ w wᵀ/‖w‖², of the tokens of each head: (B, H, 2, BD, BD). Grid (B·H,)."""
    bh = tl.program_id(0)
    w = head_of(w, bh // H, bh % H, w_b, w_h)
    gram = tl.zeros((BD, BD), tl.float32)
    unit = tl.zeros((BD, BD), tl.float32)
    for start in range(0, N, BN):
        valid = start + tl.arange(0, BN) < N
        tokens = load_rows(w, start, w_n, valid, BN, D, BD).to(tl.float32)
        gram = tl.dot(tl.trans(tokens), tokens, gram, input_precision="tf32")
        tokens *= tl.rsqrt(tl.maximum(tl.sum(tokens * tokens, 1), 1e-24))[:, None]
        unit = tl.dot(tl.trans(tokens), tokens, unit, input_precision="tf32")
    i = tl.arange(0, BD)
    place = grams + bh.to(tl.int64) * 2 * BD * BD + i[:, None] * BD + i[None, :]
    tl.store(place, gram)
    tl.store(place + BD * BD, unit)


@triton.jit
def eliminate(matrix, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """STEPS steps of symmetric elimination: what becomes of the matrix, and the sum of log(pivot)."""
    i = tl.arange(0, SIZE)
    total = 0.0
    for j in range(STEPS):
        row = tl.sum(tl.where(i[:, None] == j, matrix, 0.0), 0)
        pivot = tl.sum(tl.where(i == j, row, 0.0), 0)
        pivot = tl.where(pivot < 1.0, 1.0, pivot)  # none is but by rounding
        total += tl.log(pivot)
        matrix -= row[:, None] * (row / pivot)[None, :]
    return matrix, total


@triton.jit
def half_log_determinants(grams, out, c, BD: tl.constexpr):
    """½ logdet(I + c·G) of each Gram matrix G (BD, BD), by symmetric elimination. Grid (matrices,).

    After half of the steps what is left is a quarter of the matrix: the rest goes on with that.
    """
    program = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BD)
    rows, columns = i[:, None], i[None, :]
    matrix = c * tl.load(grams + program * BD * BD + rows * BD + columns) + (rows == columns).to(tl.float32)
    HALF: tl.constexpr = BD // 2
    matrix, total = eliminate(matrix, BD, HALF)
    quarters = tl.permute(tl.reshape(matrix, (2, HALF, 2, HALF)), (1, 3, 0, 2))
    _, lower = tl.split(tl.permute(quarters, (0, 1, 3, 2)))  # rows of the lower half, (HALF, HALF, 2)
    _, rest = tl.split(lower)
    _, more = eliminate(rest, HALF, HALF)
    tl.store(out + program, 0.5 * (total + more))
