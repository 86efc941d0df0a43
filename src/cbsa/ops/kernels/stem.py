"""The first stage of a stem: 3×3 convolution of stride 2 from a few channels, padded by 1; BatchNorm; GELU.

Libraries pad three channels to eight and more; here the 9·C_in numbers under a window, and a 1, are a row of
one small product. The output of the convolution is never stored: it is computed again where it is needed,
and what BatchNorm needs of it follows from the moments of the windows (``cbsa.ops.fused_stem``).

Output pixels of an image are counted in the order of memory, and cut into blocks of BP.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.gelu import gelu, gelu_slope


@triton.jit
def load_windows(
    x, block, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Windows (BP, BK) of the pixels of a block, of ``blocks`` in an image.

    A window is (row, column, channel), then 1, then 0; of pixels beyond the last it is 0. WIDE is for images
    whose numbers 32 bits cannot count, among which are those whose output pixels they cannot.
    """
    block_of_image, pixels_in_row = block % blocks, out_width
    if WIDE:
        block_of_image, pixels_in_row = tl.cast(block_of_image, tl.int64), tl.cast(out_width, tl.int64)
    p = block_of_image * BP + tl.arange(0, BP)
    k = tl.arange(0, BK)
    y = 2 * (p // out_width)[:, None] - 1 + (k // (3 * CIN))[None, :]
    z = 2 * (p % out_width)[:, None] - 1 + (k // CIN % 3)[None, :]
    valid = (p < out_height * pixels_in_row)[:, None]
    inside = valid & (k < 9 * CIN)[None, :] & (y >= 0) & (y < height) & (z >= 0) & (z < width)
    c = (k % CIN)[None, :]
    if WIDE:
        y, z, c = y.to(tl.int64), z.to(tl.int64), c.to(tl.int64)
    image = x + tl.cast(block // blocks, tl.int64) * x_b
    windows = tl.load(image + (y * x_y + z * x_x + c * x_c), mask=inside, other=0.0)
    return tl.where(valid & (k == 9 * CIN)[None, :], 1.0, windows)


@triton.jit
def load_kernel(weight, first, CIN: tl.constexpr, COUT: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):
    """The weight (C_out, C_in, 3, 3) of BC channels as a matrix (BK, BC) to multiply windows with."""
    k, o = tl.arange(0, BK), first + tl.arange(0, BC)
    inside = (k < 9 * CIN)[:, None] & (o < COUT)[None, :]
    return tl.load(weight + o[None, :] * 9 * CIN + (k % CIN * 9 + k // CIN)[:, None], mask=inside, other=0.0)


@triton.jit
def load_channels(x, first, COUT: tl.constexpr, BC: tl.constexpr):
    """One number for each of BC channels, (1, BC)."""
    o = first + tl.arange(0, BC)
    return tl.load(x + o, mask=o < COUT, other=0.0).to(tl.float32)[None, :]


@triton.jit
def place_pixels(block, blocks, count, first, COUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Where BC channels of a block of pixels lie in maps of ``count`` pixels, channels last; which exist."""
    pixel = tl.cast(block % blocks, tl.int64) * BP  # the maps may have more numbers than 32 bits can count
    p, o = tl.arange(0, BP), first + tl.arange(0, BC)
    start = (tl.cast(block // blocks, tl.int64) * count + pixel) * COUT
    inside = (pixel + p < count)[:, None] & (o < COUT)[None, :]
    return start + (p[:, None] * COUT + o[None, :]), inside


@triton.jit
def window_moments(
    x, parts,
    count, total, chunk, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program's sum of the outer products of windows, (programs, BK, BK). Grid (programs,)."""
    program = tl.program_id(0)
    acc = tl.zeros((BK, BK), tl.float32)
    for block in range(program * chunk, tl.minimum(program * chunk + chunk, total)):
        windows = load_windows(
            x, block, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x, CIN, BP, BK, WIDE
        ).to(HALF)
        acc = tl.dot(tl.trans(windows), windows, acc, input_precision=PRECISION)
    k = tl.arange(0, BK)
    tl.store(parts + program.to(tl.int64) * BK * BK + k[:, None] * BK + k[None, :], acc)


@triton.jit
def stage_forward(
    x, weight, scale, shift, out,
    count, total, chunk, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, COUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    WIDE: tl.constexpr, SCALED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """GELU of the convolution, with SCALED times ``scale``, plus ``shift``. Grid (programs,)."""
    program = tl.program_id(0)
    for block in range(program * chunk, tl.minimum(program * chunk + chunk, total)):
        windows = load_windows(
            x, block, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x, CIN, BP, BK, WIDE
        ).to(HALF)
        for first in tl.static_range(0, COUT, BC):
            kernel = load_kernel(weight, first, CIN, COUT, BK, BC).to(HALF)
            values = tl.dot(windows, kernel, input_precision=PRECISION)  # (BP, BC)
            if SCALED:
                values *= load_channels(scale, first, COUT, BC)
            values = gelu(values + load_channels(shift, first, COUT, BC))
            place, inside = place_pixels(block, blocks, count, first, COUT, BP, BC)
            tl.store(out + place, values.to(HALF), mask=inside)


@triton.jit
def add_products(
    acc, windows, kernel, a, b, grad, block, blocks, count, first,
    COUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the products of GELU's gradient and windows to ``acc`` (BC, BK), for BC channels."""
    place, inside = place_pixels(block, blocks, count, first, COUT, BP, BC)
    g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    g *= gelu_slope(tl.dot(windows, kernel, input_precision=PRECISION) * a + b)
    return tl.dot(tl.trans(g.to(HALF)), windows, acc, input_precision=PRECISION)


@triton.jit
def store_products(acc, parts, first, COUT: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):
    """Write a program's sums for BC channels, where ``parts`` (C_out, BK) begins."""
    k, o = tl.arange(0, BK), first + tl.arange(0, BC)
    tl.store(parts + o[:, None] * BK + k[None, :], acc, mask=(o < COUT)[:, None])


@triton.jit
def stage_backward(
    x, weight, scale, shift, grad, parts,
    count, total, chunk, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x,
    CIN: tl.constexpr, COUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
    BC: tl.constexpr, MORE: tl.constexpr,
    WIDE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each program's sum of products of GELU's gradient and windows, (programs, C_out, BK). Grid (programs,).

    Channels come in two blocks, of BC and of MORE (or 0): 48 are 32 and 16.
    """
    program = tl.program_id(0)
    kernel = load_kernel(weight, 0, CIN, COUT, BK, BC).to(HALF)
    a, b = load_channels(scale, 0, COUT, BC), load_channels(shift, 0, COUT, BC)
    acc = tl.zeros((BC, BK), tl.float32)
    if MORE > 0:
        kernel2 = load_kernel(weight, BC, CIN, COUT, BK, MORE).to(HALF)
        a2, b2 = load_channels(scale, BC, COUT, MORE), load_channels(shift, BC, COUT, MORE)
        acc2 = tl.zeros((MORE, BK), tl.float32)
    for block in range(program * chunk, tl.minimum(program * chunk + chunk, total)):
        windows = load_windows(
            x, block, blocks, height, width, out_height, out_width, x_b, x_c, x_y, x_x, CIN, BP, BK, WIDE
        ).to(HALF)
        acc = add_products(
            acc, windows, kernel, a, b, grad, block, blocks, count, 0, COUT, BP, BC, HALF, PRECISION
        )
        if MORE > 0:
            acc2 = add_products(
                acc2,
                windows,
                kernel2,
                a2,
                b2,
                grad,
                block,
                blocks,
                count,
                BC,
                COUT,
                BP,
                MORE,
                HALF,
                PRECISION,
            )
    parts += program.to(tl.int64) * COUT * BK
    store_products(acc, parts, 0, COUT, BK, BC)
    if MORE > 0:
        store_products(acc2, parts, BC, COUT, BK, MORE)
