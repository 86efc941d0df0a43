"""The first convolution of a stem: 3×3, stride 2, padding 1, from a few channels to many.

Libraries pad three channels to eight and more; here the 9·C_in numbers under a window are a row of one small
product. A program serves BP output pixels of all images, counted in the order of memory (channels last).
"""

import triton
import triton.language as tl


@triton.jit
def load_windows(
    x, first, pixels, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Windows (BP, BK) of the output pixels from ``first`` on; in a window, (row, column, channel)."""
    p = first + tl.arange(0, BP).to(tl.int64)
    image, row, column = p // (out_height * out_width), p // out_width % out_height, p % out_width
    k = tl.arange(0, BK)
    y = 2 * row[:, None] - 1 + (k // (3 * CIN))[None, :]
    x_place = 2 * column[:, None] - 1 + (k // CIN % 3)[None, :]
    inside = (p < pixels)[:, None] & (k < 9 * CIN)[None, :]
    inside = inside & (y >= 0) & (y < height) & (x_place >= 0) & (x_place < width)
    place = image[:, None] * x_b + y * x_y + x_place * x_x + (k % CIN)[None, :] * x_c
    return tl.load(x + place, mask=inside, other=0.0)


@triton.jit
def in_weight(k, CIN: tl.constexpr):
    """Where entry ``k`` of a window lies in a weight (C_out, C_in, 3, 3)."""
    return k % CIN * 9 + k // CIN


@triton.jit
def gelu(x):
    """GELU x·Φ(x), with Abramowitz and Stegun's 7.1.26 for Φ: erf to 1.5e-7, cheaper than the library's."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * tail * tl.exp2(-1.4426950408889634 * z * z)  # 1 − Φ(|x|)
    return x * tl.where(x > 0, 1.0 - tail, tail)


@triton.jit
def convolve(
    x, weight, bias, out,
    pixels, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, COUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    FINISH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The convolution; with FINISH, plus a bias and through GELU. Grid (blocks of output pixels,)."""
    first = tl.program_id(0).to(tl.int64) * BP
    windows = load_windows(
        x, first, pixels, height, width, out_height, out_width, x_b, x_c, x_y, x_x, CIN, BP, BK
    )
    k, o = tl.arange(0, BK), tl.arange(0, BC)
    inside = (k < 9 * CIN)[:, None] & (o < COUT)[None, :]
    kernel = tl.load(weight + o[None, :] * 9 * CIN + in_weight(k, CIN)[:, None], mask=inside, other=0.0)
    dtype = out.dtype.element_ty
    values = tl.dot(windows.to(dtype), kernel.to(dtype), input_precision=PRECISION)  # (BP, BC)
    if FINISH:
        values += tl.load(bias + o, mask=o < COUT, other=0.0).to(tl.float32)[None, :]
        values = gelu(values)
    p = first + tl.arange(0, BP)
    place = p.to(tl.int64)[:, None] * COUT + o[None, :]
    tl.store(out + place, values.to(dtype), mask=(p < pixels)[:, None] & (o < COUT)[None, :])


@triton.jit
def convolve_weight_gradient(
    x, grad, parts,
    pixels, chunk, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, COUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program's sum over its pixels of the gradient of the weight, (programs, C_out, C_in, 3, 3)."""
    program = tl.program_id(0).to(tl.int64)
    k, o = tl.arange(0, BK), tl.arange(0, BC)
    acc = tl.zeros((BC, BK), tl.float32)
    end = tl.minimum(program * chunk + chunk, pixels)
    for first in range(program * chunk, end, BP):
        windows = load_windows(
            x, first, end, height, width, out_height, out_width, x_b, x_c, x_y, x_x, CIN, BP, BK
        )
        p = first + tl.arange(0, BP)
        inside = (p < end)[:, None] & (o < COUT)[None, :]
        g = tl.load(grad + p.to(tl.int64)[:, None] * COUT + o[None, :], mask=inside, other=0.0)  # (BP, BC)
        acc = tl.dot(tl.trans(g), windows.to(g.dtype), acc, input_precision=PRECISION)
    inside = (o < COUT)[:, None] & (k < 9 * CIN)[None, :]
    place = program * COUT * 9 * CIN + o[:, None] * 9 * CIN + in_weight(k, CIN)[None, :]
    tl.store(parts + place, acc, mask=inside)
