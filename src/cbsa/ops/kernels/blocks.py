"""What the kernels share: reading and writing blocks of rows, and which tokens are real.

One program serves one head of one image (``program_id(0)`` = b·H + h). Representatives come in blocks of BM
rows, tokens in blocks of BN, and the D coordinates of a head are padded to BD. Products accumulate in
float32. Logarithms are to the base 2, since that is the exponential a GPU has: ``scale2`` is s·log2(e).
Offsets are 64-bit: tensors here pass 2³¹ elements.
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(base, rows, stride, valid, D: tl.constexpr, BD: tl.constexpr):
    """Rows (R, BD) of a matrix with unit column stride; rows that are not valid, and padding, are 0."""
    columns = tl.arange(0, BD)
    inside = valid[:, None] & (columns < D)[None, :]
    return tl.load(base + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(base, rows, stride, values, valid, D: tl.constexpr, BD: tl.constexpr):
    """Write rows (R, BD) in the dtype of the memory, but for padding."""
    columns = tl.arange(0, BD)
    inside = valid[:, None] & (columns < D)[None, :]
    pointers = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def real_tokens(mask, b, n, N, HAS_MASK: tl.constexpr):
    """Which of the tokens ``n`` (R,) exist and are not padding."""
    valid = n < N
    if HAS_MASK:
        valid = valid & (tl.load(mask + b.to(tl.int64) * N + n, mask=valid, other=0) != 0)
    return valid
