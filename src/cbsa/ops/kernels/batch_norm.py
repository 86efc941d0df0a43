"""BatchNorm with GELU after it: rows y (R, C) of a map with its channels last.

Programs take blocks of BR rows and BC channels (BC divides C), ``chunk`` rows each; sums over rows are left
by program, (programs, 2, C), and added up in a fixed order. With scale a and shift b of a channel, GELU sees
u = a·y + b, and h = g·GELU′(u) is the gradient before it.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.gelu import gelu, gelu_slope


@triton.jit
def block_of(row, end, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Offsets (BR, BC) of rows from ``row`` on, and which of them are before ``end``."""
    rows = row + tl.arange(0, BR).to(tl.int64)
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    return rows[:, None] * C + columns[None, :], (rows < end)[:, None]


@triton.jit
def of_channels(x, BC: tl.constexpr):
    """One number for each channel of the program, (1, BC)."""
    return tl.load(x + tl.program_id(1) * BC + tl.arange(0, BC)).to(tl.float32)[None, :]


@triton.jit
def store_sums(parts, first, second, C: tl.constexpr, BC: tl.constexpr):
    """Write the sums over rows of two accumulators (BR, BC)."""
    place = parts + tl.program_id(0).to(tl.int64) * 2 * C + tl.program_id(1) * BC + tl.arange(0, BC)
    tl.store(place, tl.sum(first, 0))
    tl.store(place + C, tl.sum(second, 0))


@triton.jit
def sum_rows(y, parts, R, chunk, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Sums of z and z², z = y − y₀ with the first row y₀: near enough to the mean that nothing cancels."""
    start = tl.program_id(0).to(tl.int64) * chunk
    end = tl.minimum(start + chunk, R)
    centre = of_channels(y, BC)
    sums = tl.zeros((BR, BC), tl.float32)
    squares = tl.zeros((BR, BC), tl.float32)
    for row in range(start, end, BR):
        place, inside = block_of(row, end, C, BR, BC)
        z = tl.where(inside, tl.load(y + place, mask=inside, other=0.0).to(tl.float32) - centre, 0.0)
        sums += z
        squares += z * z
    store_sums(parts, sums, squares, C, BC)


@triton.jit
def normalise_gelu(y, scale, shift, out, R, chunk, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """GELU(a·y + b)."""
    start = tl.program_id(0).to(tl.int64) * chunk
    end = tl.minimum(start + chunk, R)
    a, b = of_channels(scale, BC), of_channels(shift, BC)
    for row in range(start, end, BR):
        place, inside = block_of(row, end, C, BR, BC)
        values = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + place, gelu(values * a + b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def sum_gradients(
    grad, y, scale, shift, mean, parts, R, chunk, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Sums of h and h·(y − mean)."""
    start = tl.program_id(0).to(tl.int64) * chunk
    end = tl.minimum(start + chunk, R)
    a, b, centre = of_channels(scale, BC), of_channels(shift, BC), of_channels(mean, BC)
    sums = tl.zeros((BR, BC), tl.float32)
    products = tl.zeros((BR, BC), tl.float32)
    for row in range(start, end, BR):
        place, inside = block_of(row, end, C, BR, BC)
        values = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
        h = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32) * gelu_slope(values * a + b)
        sums += h
        products += h * (values - centre)
    store_sums(parts, sums, products, C, BC)


@triton.jit
def normalise_gradient(
    grad, y, scale, shift, slope, offset, out, R, chunk,
    C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to y, a·h + slope·y + offset."""
    start = tl.program_id(0).to(tl.int64) * chunk
    end = tl.minimum(start + chunk, R)
    a, b = of_channels(scale, BC), of_channels(shift, BC)
    slopes, offsets = of_channels(slope, BC), of_channels(offset, BC)
    for row in range(start, end, BR):
        place, inside = block_of(row, end, C, BR, BC)
        values = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
        h = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32) * gelu_slope(values * a + b)
        tl.store(out + place, (a * h + slopes * values + offsets).to(out.dtype.element_ty), mask=inside)
