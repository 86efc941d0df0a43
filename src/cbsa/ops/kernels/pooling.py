"""Averages over the windows of adaptive pooling, and their transpose; ``cbsa.ops.fused_pooling`` calls these.

Window i of o along an axis of n tokens is [⌊i·n/o⌋, ⌈(i+1)·n/o⌉), and the windows that hold token r are
[⌊r·o/n⌋, ⌈(r+1)·o/n⌉): the same rule with n and o exchanged. So one kernel gathers tokens for windows, and
windows' gradients for tokens. The number of windows is a compile-time constant, the grid is not.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbsa.ops.kernels.sums import add_up

_TILE = 256  # numbers that a program's threads load at a time
_BLOCKS_CHANNELS = (128, 64)  # the one that leaves the fewest channels over
_STEPS = 4  # loads in flight
_STAGES = 3  # rows in flight
_PROGRAMS = 8192  # fill a large GPU; fixed, so that the order of sums does not depend on the device
_MANY_PROGRAMS = 16384  # from so many on, each serves several images
_IMAGES = 8
_FEW = 4  # steps that are not worth a split
_MERGED = 2048  # numbers, of all splits, that a program adds up in one step


@triton.jit
def span(i, n, o):
    """First and last (exclusive) of n that belong to ``i`` of o."""
    return i * n // o, ((i + 1) * n + o - 1) // o


@triton.jit
def average(
    x, out, size, x_b, x_n, x_h, out_b, B, H, W, images, chunk_rows, chunk_columns,
    P: tl.constexpr, Q: tl.constexpr, C: tl.constexpr, HEAD: tl.constexpr,
    SPREAD: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr,
    BW: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Average the tokens (H, W) of P×Q windows; with SPREAD, give each token the gradient of its windows.

    With ADD, the result is added to what is there.

    A program serves BW targets of one row and BC channels of several images; BT sources of a target are
    loaded at a time. The C channels of a source are heads of HEAD channels, ``x_h`` apart. Splits (program
    axes 1 and 2) take ``chunk_rows`` × ``chunk_columns`` of each target's sources, and write what they have
    one after the other, ``size`` numbers apart.
    """
    if SPREAD:
        rows, columns, source_rows, source_columns = H, W, P, Q
    else:
        rows, columns, source_rows, source_columns = P, Q, H, W
    blocks: tl.constexpr = (C + BC - 1) // BC
    program = tl.program_id(0)
    channels = program % blocks * BC + tl.arange(0, BC)
    program = program // blocks
    column_blocks = (columns + BW - 1) // BW
    j = program % column_blocks * BW + tl.arange(0, BW)
    program = program // column_blocks
    i = program % rows
    first_image = program // rows * images
    if WIDE:
        i, j = i.to(tl.int64), j.to(tl.int64)

    top, bottom = span(i, source_rows, rows)
    left, right = span(j, source_columns, columns)  # (BW,)
    weight = 1.0 / ((bottom - top) * (right - left)).to(tl.float32)
    right = tl.minimum(right, source_columns)  # nothing beyond the last target
    top += tl.program_id(1) * chunk_rows
    bottom = tl.minimum(bottom, top + chunk_rows)
    start = tl.program_id(2) * chunk_columns
    split = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    target = (i * columns + j).to(tl.int64)
    out += split.to(tl.int64) * size
    written = (j < columns)[:, None] & (channels < C)[None, :]
    lies_at = (channels // HEAD).to(tl.int64) * x_h + channels % HEAD

    for b in range(first_image, tl.minimum(first_image + images, B)):
        image = x + tl.cast(b, tl.int64) * x_b
        acc = tl.zeros((BW, BT, BC), tl.float32)
        for offset in range(start, start + chunk_columns, STEPS * BT):
            for row in tl.range(top, bottom, num_stages=STAGES):
                if SPREAD:
                    row_start, row_stop = span(row, H, P)
                    row_weight = 1.0 / (row_stop - row_start).to(tl.float32)
                for step in tl.static_range(STEPS):
                    column = left[:, None] + (offset + step * BT + tl.arange(0, BT))[None, :]  # (BW, BT)
                    inside = (column < right[:, None])[:, :, None]
                    if C % BC != 0:
                        inside = inside & (channels < C)[None, None, :]
                    source = (row * source_columns + column).to(tl.int64) * x_n
                    pointers = image + source[:, :, None] + lies_at[None, None, :]
                    values = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
                    if SPREAD:
                        column_start, column_stop = span(column, W, Q)
                        column_weight = 1.0 / (column_stop - column_start).to(tl.float32)
                        values *= (row_weight * column_weight)[:, :, None]
                    acc += values
        total = tl.sum(acc, 1)  # (BW, BC)
        if not SPREAD:
            total *= weight[:, None]
        pointers = out + tl.cast(b, tl.int64) * out_b + (target * C)[:, None] + channels[None, :]
        if ADD:
            total += tl.load(pointers, mask=written, other=0.0).to(tl.float32)
        tl.store(pointers, total.to(out.dtype.element_ty), mask=written)


def run(
    x: Tensor, out: Tensor, grid: tuple[int, int], size: tuple[int, int], spread: bool, add: bool = False
) -> None:
    """Write into ``out`` the averages of x over ``size`` windows; with ``spread``, the transpose of that.

    With ``add``, it is added to what is there. Strides of x, (B, N or m, C) or with heads (B, N or m, H, d),
    may be any if the channels of a head are adjacent; the tokens of an image in ``out`` are contiguous.
    """
    batch, _, heads, head_dim = (x.unsqueeze(2) if x.dim() == 3 else x).shape
    channels = heads * head_dim
    plan = _plan(batch, grid, size, channels, spread)
    splits = plan.programs[1] * plan.programs[2]
    whole = splits == 1
    into = out if whole else out.new_empty((splits, *out.shape), dtype=torch.float32)
    average[plan.programs](
        x, into, out.numel(), x.stride(0), x.stride(1), x.stride(-2), into.stride(-3), batch, *grid,
        *plan.work, **plan.options, HEAD=head_dim, ADD=add and whole,
    )  # fmt: skip
    if not whole:
        at_once = min(16, triton.next_power_of_2(splits))
        block = _MERGED // at_once
        total = out if out.is_contiguous() and not add else out.new_empty(out.shape)
        add_up(into, total, at_once=at_once, block=block)
        if total is not out:
            out.copy_(out + total if add else total)


class _Plan(NamedTuple):
    programs: tuple[int, int, int]  # the latter two are splits, along rows and columns
    work: tuple[int, int, int]  # of a program: images, and a target's sources along rows and columns
    options: dict[str, Any]  # sizes known at compile time


@lru_cache(maxsize=1024)
def _plan(batch: int, grid: tuple[int, int], size: tuple[int, int], channels: int, spread: bool) -> _Plan:
    """How to cut the work."""
    targets, sources = (grid, size) if spread else (size, grid)
    tall, wide = (_longest(n, o) for n, o in zip(sources, targets, strict=True))
    block = min(_BLOCKS_CHANNELS, key=lambda block: (triton.cdiv(channels, block) * block, -block))
    block = min(block, triton.next_power_of_2(channels))
    tile = _TILE // block
    at_once = min(tile, triton.next_power_of_2(triton.cdiv(wide, _STEPS)))
    steps = min(_STEPS, triton.cdiv(wide, at_once))
    windows = min(tile // at_once, triton.next_power_of_2(targets[1]))
    one_image = targets[0] * triton.cdiv(targets[1], windows) * triton.cdiv(channels, block)
    images = max(1, min(_IMAGES, batch * one_image // _MANY_PROGRAMS))
    groups = triton.cdiv(batch, images)
    images, programs = triton.cdiv(batch, groups), groups * one_image
    rows, row_splits = _split(tall, 1, _PROGRAMS // programs)
    columns, column_splits = _split(wide, steps * at_once, _PROGRAMS // (programs * row_splits))
    options = {
        "P": size[0], "Q": size[1], "C": channels, "SPREAD": spread,
        "WIDE": _is_wide(grid, size, max(windows, steps * at_once)),
        "BW": windows, "BT": at_once, "BC": block, "STEPS": steps, "STAGES": 1 if spread else _STAGES,
        "num_warps": max(1, min(4, windows * at_once * block // 256)),
    }  # fmt: skip
    return _Plan((programs, row_splits, column_splits), (images, rows, columns), options)


def _is_wide(grid: tuple[int, int], size: tuple[int, int], margin: int) -> bool:
    """Whether products of positions and lengths need 64 bits, also of blocks that reach beyond the last."""
    return any((2 * n + margin) * (2 * o + margin) >= 2**31 for n, o in zip(grid, size, strict=True))


def _longest(n: int, o: int) -> int:
    """Most that any of o has of n."""
    divisor = math.gcd(n, o)
    n, o = n // divisor, o // divisor
    return (n + 2 * o - 2) // o


def _split(length: int, step: int, wanted: int) -> tuple[int, int]:
    """Length of a part, a multiple of ``step``, and number of parts: ``wanted``, unless they get short."""
    steps = triton.cdiv(length, step)
    parts = max(1, min(wanted, steps // _FEW))
    part = triton.cdiv(steps, parts)
    return part * step, triton.cdiv(steps, part)
