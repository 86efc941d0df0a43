"""LayerNorm of rows, with the sum before it; one pass forward, one backward.

One warp serves whole rows, so that sums over a row never leave it.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.ahead import announce


@triton.jit
def layer_norm_forward(
    x, update, shift, weight, bias, total, out, mean, rstd, nonzero,
    R, eps,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    ADD: tl.constexpr, SHIFT: tl.constexpr, KEEP: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """LayerNorm of x, or with ADD of x + update, and with SHIFT of x + update + shift.

    With KEEP also that sum, mean and 1/σ; with COUNT, how many numbers of it are not 0 is added to
    ``nonzero`` (a sum of integers is the same in any order). Grid (blocks,).
    """
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    columns = tl.arange(0, BD)
    valid = rows < R
    inside = valid[:, None] & (columns < D)[None, :]
    place = rows[:, None] * D + columns[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(update + place, mask=inside, other=0.0).to(tl.float32)
        if SHIFT:
            values += tl.load(shift + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]
        # the statistics are those of the sum as it is stored
        values = values.to(total.dtype.element_ty).to(tl.float32)
        if KEEP:
            tl.store(total + place, values.to(total.dtype.element_ty), mask=inside)
    if COUNT:
        dense = tl.sum(tl.sum((values != 0.0).to(tl.int32), 1), 0)  # outside there are zeros
        tl.atomic_add(nonzero, dense.to(tl.int64))
    centre = tl.sum(values, 1) / D
    values = tl.where(inside, values - centre[:, None], 0.0)
    width = tl.rsqrt(tl.sum(values * values, 1) / D + eps)
    if KEEP:
        tl.store(mean + rows, centre, mask=valid)
        tl.store(rstd + rows, width, mask=valid)
    scale = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=columns < D, other=0.0).to(tl.float32)
    values = values * width[:, None] * scale[None, :] + offset[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_backward(
    grad, more, x, mean, rstd, weight, grad_x, parts,
    R, chunk,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    MORE: tl.constexpr, SHIFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gradient of the rows x (R, D), and each program's sums for weight and bias (programs, 2, D).

    With SHIFT also its sums of the gradient itself, (programs, 3, D).

    With x̂ = (x − mean)·rstd and h = g∘weight: dx = rstd·(h − x̂·⟨h, x̂⟩/D − ⟨h⟩/D), and with MORE, plus the
    gradient that reaches x on another way. Grid (programs,).
    """
    announce(PDL)
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BD)
    scale = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((BD,), tl.float32)
    sum_bias = tl.zeros((BD,), tl.float32)
    sum_shift = tl.zeros((BD,), tl.float32)
    end = tl.minimum(program * chunk + chunk, R)
    for start in range(program * chunk, end, BR):
        rows = start + tl.arange(0, BR)
        valid = rows < end
        inside = valid[:, None] & (columns < D)[None, :]
        place = rows[:, None] * D + columns[None, :]
        g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + rows, mask=valid, other=0.0)
        width = tl.load(rstd + rows, mask=valid, other=0.0)
        normed = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - centre[:, None]) * width[
            :, None
        ]
        normed = tl.where(inside, normed, 0.0)
        sum_weight += tl.sum(g * normed, 0)  # rows of a column are one thread's
        sum_bias += tl.sum(g, 0)
        g = g * scale[None, :]
        along = tl.sum(g * normed, 1) / D
        total = (g - normed * along[:, None] - (tl.sum(g, 1) / D)[:, None]) * width[:, None]
        if MORE:
            total += tl.load(more + place, mask=inside, other=0.0).to(tl.float32)
        if SHIFT:
            sum_shift += tl.sum(tl.where(inside, total, 0.0), 0)
        tl.store(grad_x + place, total.to(grad_x.dtype.element_ty), mask=inside)
    place = parts + program * (3 if SHIFT else 2) * D + columns
    tl.store(place, sum_weight, mask=columns < D)
    tl.store(place + D, sum_bias, mask=columns < D)
    if SHIFT:
        tl.store(place + 2 * D, sum_shift, mask=columns < D)
