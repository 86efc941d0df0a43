"""What the kernels share: reading and writing blocks of rows, and which tokens are real.

One program serves one head of one image (``program_id(0)`` = b·H + h). Representatives come in blocks of BM
rows, tokens in blocks of BN, and the D coordinates of a head are padded to BD. Products take operands in the
dtype of the tokens and accumulate in float32. Logarithms are to the base 2, since that is the exponential a
GPU has: ``scale2`` is s·log2(e). Offsets are 64-bit: tensors here pass 2³¹ elements.
"""

import triton
import triton.language as tl


@triton.jit
def head_of(base, b, h, batch_stride, head_stride):
    """Where head ``h`` of image ``b`` begins."""
    return base + b.to(tl.int64) * batch_stride + h.to(tl.int64) * head_stride


@triton.jit
def load_rows(base, first, stride, valid, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Rows ``first`` to ``first`` + R of a matrix with unit column stride; invalid rows and padding are 0."""
    rows, columns = tl.arange(0, R).to(tl.int64), tl.arange(0, BD)
    pointers = base + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + columns[None, :])
    inside = valid[:, None] if D == BD else valid[:, None] & (columns < D)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(base, first, stride, values, valid, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Write rows (R, BD) in the dtype of the memory, but for padding."""
    rows, columns = tl.arange(0, R).to(tl.int64), tl.arange(0, BD)
    pointers = base + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + columns[None, :])
    inside = valid[:, None] if D == BD else valid[:, None] & (columns < D)[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def real_tokens(mask, b, first, N, BN: tl.constexpr, EDGE: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which of the BN tokens from ``first`` on exist and are not padding: all of them if not EDGE."""
    n = first + tl.arange(0, BN)
    valid = n < N if EDGE else tl.full((BN,), True, tl.int1)
    if HAS_MASK:
        valid = valid & (tl.load(mask + b.to(tl.int64) * N + n, mask=valid, other=0) != 0)
    return valid
