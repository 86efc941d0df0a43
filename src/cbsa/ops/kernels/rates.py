"""Coding rates of tokens within the heads of a layer: Gram matrices and their determinants.

Products of 16 bits alone take a transposed factor as it lies in shared memory. A token is therefore cut into
two parts (bfloat16: 16 bits together), and the Gram matrix is that of the cut tokens, all four products exact
and summed in float32: it stays positive, and small eigenvalues change by the square of 2⁻¹⁶. Of tokens of
unit length one part is enough: its error is little beside the 1 of I + c·G.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.blocks import head_of, load_rows


@triton.jit
def head_grams(
    w, grams,
    H, N, w_b, w_h, w_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Σ w wᵀ, and Σ w wᵀ/‖w‖², of the tokens of each head: (B, H, 2, BD, BD). Grid (B·H,)."""
    bh = tl.program_id(0)
    w = head_of(w, bh // H, bh % H, w_b, w_h)
    gram = tl.zeros((BD, BD), tl.float32)
    cross = tl.zeros((BD, BD), tl.float32)
    unit = tl.zeros((BD, BD), tl.float32)
    for start in range(0, N, BN):
        valid = start + tl.arange(0, BN) < N
        tokens = load_rows(w, start, w_n, valid, BN, D, BD).to(tl.float32)
        high = tokens.to(HALF)
        low = (tokens - high.to(tl.float32)).to(HALF)
        gram = tl.dot(tl.trans(high), high, gram)
        gram = tl.dot(tl.trans(low), low, gram)
        cross = tl.dot(tl.trans(high), low, cross)
        tokens *= tl.rsqrt(tl.maximum(tl.sum(tokens * tokens, 1), 1e-24))[:, None]
        turned = tokens.to(HALF)
        unit = tl.dot(tl.trans(turned), turned, unit)
    i = tl.arange(0, BD)
    place = grams + bh.to(tl.int64) * 2 * BD * BD + i[:, None] * BD + i[None, :]
    tl.store(place, gram + cross + tl.trans(cross))
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
    REST: tl.constexpr = BD // 2
    matrix, total = eliminate(matrix, BD, REST)
    quarters = tl.permute(tl.reshape(matrix, (2, REST, 2, REST)), (1, 3, 0, 2))
    _, lower = tl.split(tl.permute(quarters, (0, 1, 3, 2)))  # rows of the lower half, (REST, REST, 2)
    _, rest = tl.split(lower)
    _, more = eliminate(rest, REST, REST)
    tl.store(out + program, 0.5 * (total + more))
