"""Coding rates of tokens within the heads of a layer: LayerNorm, projection, Gram matrix, determinant.

A head's tokens w = LN(x) U (N, P) are made block by block and never stored. With γ and β of the norm,
LN(x) U = (x (γ∘U) − mean·γᵀU)/σ + βᵀU, so that the projection runs on x while its mean and σ are summed up.
Everything is in float32; products are ``PRECISION``.
"""

import triton
import triton.language as tl


@triton.jit
def head_grams(
    x, basis, along, offset, grams,
    H, N, x_b, x_n, eps,
    D: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ w wᵀ, and Σ w wᵀ/‖w‖², of each head of each image: (B, H, 2, BP, BP). Grid (B·H,).

    ``basis`` is γ∘U (D, H, P), ``along`` its sum over D and ``offset`` βᵀU plus a bias (H, P).
    """
    program = tl.program_id(0)
    image, h = (program // H).to(tl.int64), program % H
    columns, p = tl.arange(0, BK), tl.arange(0, BP)
    inside = p < P
    centre = tl.load(along + h * P + p, mask=inside, other=0.0)[None, :]
    start = tl.load(offset + h * P + p, mask=inside, other=0.0)[None, :]
    gram = tl.zeros((BP, BP), tl.float32)
    unit = tl.zeros((BP, BP), tl.float32)
    for first in range(0, N, BN):
        rows = first + tl.arange(0, BN).to(tl.int64)
        valid = (rows < N)[:, None]
        tokens = x + image * x_b + rows[:, None] * x_n
        reference = tl.load(x + image * x_b + rows * x_n, mask=rows < N, other=0.0).to(tl.float32)[:, None]
        w = tl.zeros((BN, BP), tl.float32)
        total = tl.zeros((BN,), tl.float32)
        squares = tl.zeros((BN,), tl.float32)
        for k in range(0, D, BK):
            there = (k + columns < D)[None, :]
            values = tl.load(tokens + k + columns[None, :], mask=valid & there, other=0.0).to(tl.float32)
            # relative to the row's first number, so that the variance does not cancel
            values = tl.where(there, values - reference, 0.0)
            total += tl.sum(values, 1)
            squares += tl.sum(values * values, 1)
            place = (k + columns)[:, None] * (H * P) + h * P + p[None, :]
            u = tl.load(basis + place, mask=(k + columns < D)[:, None] & inside[None, :], other=0.0)
            w = tl.dot(values, u, w, input_precision=PRECISION)
        mean = total / D
        width = tl.rsqrt(tl.maximum(squares / D - mean * mean, 0.0) + eps)
        w = tl.where(valid, (w - mean[:, None] * centre) * width[:, None] + start, 0.0)
        gram = tl.dot(tl.trans(w), w, gram, input_precision=PRECISION)
        w *= tl.rsqrt(tl.maximum(tl.sum(w * w, 1), 1e-24))[:, None]
        unit = tl.dot(tl.trans(w), w, unit, input_precision=PRECISION)
    place = grams + program.to(tl.int64) * 2 * BP * BP + p[:, None] * BP + p[None, :]
    tl.store(place, gram)
    tl.store(place + BP * BP, unit)


@triton.jit
def half_log_determinants(grams, out, c, BP: tl.constexpr):
    """½ logdet(I + c·G) of each Gram matrix G (BP, BP), by symmetric elimination. Grid (matrices,)."""
    program = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BP)
    rows, columns = i[:, None], i[None, :]
    matrix = c * tl.load(grams + program * BP * BP + rows * BP + columns) + (rows == columns).to(tl.float32)
    total = 0.0
    for j in range(BP):
        row = tl.sum(tl.where(rows == j, matrix, 0.0), 0)
        pivot = tl.sum(tl.where(i == j, row, 0.0), 0)
        pivot = tl.where(pivot < 1.0, 1.0, pivot)  # none is but by rounding
        total += tl.log(pivot)
        matrix -= row[:, None] * (row / pivot)[None, :]
    tl.store(out + program, 0.5 * total)
