"""Sums of what several programs left, in a fixed order: the same bits every time."""

import triton
import triton.language as tl
from torch import Tensor

from cbsa.ops.kernels.ahead import follow, launched_ahead


@triton.jit
def add_up_kernel(
    parts, more, total,
    size, count,
    HAS_MORE: tl.constexpr, BLOCK: tl.constexpr, BS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sum of ``parts`` (count, size), and of ``more`` (size,), BS parts at a time. Grid (blocks,)."""
    follow(PDL)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BS, BLOCK), tl.float32)
    for start in range(0, count, BS):
        s = start + tl.arange(0, BS).to(tl.int64)
        inside = (s < count)[:, None] & (i < size)[None, :]
        acc += tl.load(parts + s[:, None] * size + i[None, :], mask=inside, other=0.0)
    result = tl.sum(acc, 0)
    if HAS_MORE:
        result += tl.load(more + i, mask=i < size, other=0.0)
    tl.store(total + i, result.to(total.dtype.element_ty), mask=i < size)


def add_up(
    parts: Tensor,
    total: Tensor,
    more: Tensor | None = None,
    *,
    at_once: int,
    block: int,
    warps: int = 4,
) -> Tensor:
    """Put the sum of parts (count, …), and of ``more``, into ``total`` (contiguous) and return it.

    ``at_once`` parts of ``block`` numbers are added in one step.
    """
    size = total.numel()
    add_up_kernel[(triton.cdiv(size, block),)](
        parts, parts if more is None else more, total, size, parts.shape[0],
        HAS_MORE=more is not None, BLOCK=block, BS=at_once, **launched_ahead(parts.device), num_warps=warps,
    )  # fmt: skip
    return total
