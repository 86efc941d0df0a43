"""Backward of LayerNorm in one pass over the rows."""

import triton
import triton.language as tl


@triton.jit
def layer_norm_backward(
    grad, x, mean, rstd, weight, grad_x, parts,
    R, chunk,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradient of the rows (R, D), and each program's sums for weight and bias (programs, 2, D).

    With x̂ = (x − mean)·rstd and h = g∘weight: dx = rstd·(h − x̂·⟨h, x̂⟩/D − ⟨h⟩/D). Grid (programs,).
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BD)
    scale = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((BD,), tl.float32)
    sum_bias = tl.zeros((BD,), tl.float32)
    for start in range(0, chunk, BR):
        rows = program * chunk + start + tl.arange(0, BR)
        valid = (rows < R) & (start + tl.arange(0, BR) < chunk)
        inside = valid[:, None] & (columns < D)[None, :]
        place = rows[:, None] * D + columns[None, :]
        g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + rows, mask=valid, other=0.0)
        width = tl.load(rstd + rows, mask=valid, other=0.0)
        normed = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - centre[:, None]) * width[
            :, None
        ]
        normed = tl.where(inside, normed, 0.0)
        sum_weight += tl.sum(g * normed, 0)
        sum_bias += tl.sum(g, 0)
        g = g * scale[None, :]
        along = tl.sum(g * normed, 1) / D
        total = (g - normed * along[:, None] - (tl.sum(g, 1) / D)[:, None]) * width[:, None]
        tl.store(grad_x + place, total.to(grad_x.dtype.element_ty), mask=inside)
    place = parts + program * 2 * D + columns
    tl.store(place, sum_weight, mask=columns < D)
    tl.store(place + D, sum_bias, mask=columns < D)
