"""Kernels of the forward over split tokens: extract, merge, contract, broadcast."""

import triton
import triton.language as tl

from cbsa.ops.kernels.ahead import announce, follow
from cbsa.ops.kernels.blocks import head_of, load_rows, real_tokens, store_rows
from cbsa.ops.kernels.steps import (
    attend,
    broadcast_backwards,
    contract_block,
    gather_online,
    log_sum,
    nothing_seen,
    spread_values,
)


@triton.jit
def extract(
    w, v, q, mask, part_max, part_sum, part_acc,
    H, N, M, chunk, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Row maxima, sums and accumulators of A w over each split's tokens (splits, B·H, M[, D]), online.

    Of A v where values v are given, w being the keys. Without ``part_sum`` there is one split, which leaves
    the log₂-sum-exp in ``part_max`` and D in ``part_acc``. Grid (B·H, blocks of representatives, splits).
    """
    announce(PDL)
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    if v is not None:
        v = head_of(v, b, h, v_b, v_h)
    r = block * BM + tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), block * BM, q_m, r < M, BM, D, BD)  # (BM, BD)
    top, total, acc = gather_online(
        queries, head_of(w, b, h, w_b, w_h), v, mask, b, split * chunk, tl.minimum((split + 1) * chunk, N), N,
        scale2, w_n, v_n, D, BD, BM, BN, HAS_MASK, PRECISION,
    )  # fmt: skip
    row = (split.to(tl.int64) * tl.num_programs(0) + bh) * M
    if part_sum is None:
        total, top = log_sum(top, total)
        acc = acc / total[:, None]
    tl.store(part_max + row + r, top, mask=r < M)
    if part_sum is not None:
        tl.store(part_sum + row + r, total, mask=r < M)
    store_rows(part_acc + row * D, block * BM, D, acc, r < M, BM, D, BD)


@triton.jit
def merge(
    delta, lse, part_max, part_sum, part_acc,
    rows, splits,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """D and the log₂-sum-exp from the splits of :func:`extract`, in a fixed order: the same bits every time.

    Rows of all heads are one list (``rows`` = B·H·M). Grid (blocks of BR rows,).
    """
    follow(PDL)
    r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    columns = tl.arange(0, BD)
    top = tl.full((BR,), float("-inf"), tl.float32)
    for start in range(0, splits, BS):
        s = start + tl.arange(0, BS).to(tl.int64)
        inside = (s < splits)[:, None] & (r < rows)[None, :]
        tops = tl.load(part_max + s[:, None] * rows + r[None, :], mask=inside, other=float("-inf"))
        top = tl.maximum(top, tl.max(tops, 0))
    safe = tl.where(top == float("-inf"), 0.0, top)  # nothing but padding
    total = tl.zeros((BR,), tl.float32)
    acc = tl.zeros((BR, BD), tl.float32)
    for start in range(0, splits, BS):
        s = start + tl.arange(0, BS).to(tl.int64)
        inside = (s < splits)[:, None] & (r < rows)[None, :]
        place = s[:, None] * rows + r[None, :]  # (BS, BR)
        factor = tl.exp2(tl.load(part_max + place, mask=inside, other=float("-inf")) - safe[None, :])
        total += tl.sum(factor * tl.load(part_sum + place, mask=inside, other=0.0), 0)
        inside = inside[:, :, None] & (columns < D)[None, None, :]
        parts = tl.load(part_acc + place[:, :, None] * D + columns[None, None, :], mask=inside, other=0.0)
        acc += tl.sum(factor[:, :, None] * parts, 0)
    total, norm = log_sum(top, total)
    tl.store(lse + r, norm, mask=r < rows)
    inside = (r < rows)[:, None] & (columns < D)[None, :]
    tl.store(delta + r[:, None] * D + columns[None, :], acc / total[:, None], mask=inside)


@triton.jit
def load_extracted(q, delta, eta, first, q_m, M, BM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """R = Q + η·D of BM rows, in float32."""
    valid = first + tl.arange(0, BM) < M
    initial = load_rows(q, first, q_m, valid, BM, D, BD).to(tl.float32)
    return initial + eta * load_rows(delta, first, D, valid, BM, D, BD)


@triton.jit
def merge_block(
    part_max, part_sum, part_acc, row, rows, splits, M,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """What :func:`merge` does, for all M ≤ BM representatives of a head and at most BS splits: D and lse."""
    r, s = tl.arange(0, BM), tl.arange(0, BS)
    inside = (s < splits)[:, None] & (r < M)[None, :]
    place = row + s.to(tl.int64)[:, None] * rows + r[None, :]
    tops = tl.load(part_max + place, mask=inside, other=float("-inf"))  # (BS, BM)
    top = tl.max(tops, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)  # nothing but padding
    total = tl.sum(tl.exp2(tops - safe[None, :]) * tl.load(part_sum + place, mask=inside, other=0.0), 0)
    acc = tl.zeros((BM, BD), tl.float32)
    for split in tl.range(0, splits, loop_unroll_factor=4):
        here = row + tl.cast(split, tl.int64) * rows
        factor = tl.exp2(tl.load(part_max + here + r, mask=r < M, other=float("-inf")) - safe)
        acc += factor[:, None] * load_rows(part_acc + here * D, 0, D, r < M, BM, D, BD)
    total, norm = log_sum(top, total)
    return acc / total[:, None], norm


@triton.jit
def contract(
    q, delta, lse, part_max, part_sum, part_acc, step_rep, step_out, c, lse_c, kappa_c,
    H, M, splits, scale2,
    q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, REP_BLOCKS: tl.constexpr,
    SOFTMAX: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """κ·C, C = softmax(s·RRᵀ)R or R itself; with several blocks also C and the log-sum-exp of the softmax.

    With BS > 0, D and the log-sum-exp of A are put together from at most BS splits first.
    Grid (B·H, blocks of representatives).
    """
    follow(PDL)
    bh, block = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    q = head_of(q, b, h, q_b, q_h)
    dtype = q.dtype.element_ty
    row = bh.to(tl.int64) * M
    delta += row * D
    eta = tl.load(step_rep + h).to(tl.float32)
    r = block * BM + tl.arange(0, BM)
    if BS > 0:
        gathered, norm = merge_block(
            part_max, part_sum, part_acc, row, tl.num_programs(0).to(tl.int64) * M, splits, M, D, BD, BM, BS
        )
        store_rows(delta, 0, D, gathered, r < M, BM, D, BD)
        tl.store(lse + row + r, norm, mask=r < M)
        contracted = load_rows(q, 0, q_m, r < M, BM, D, BD).to(tl.float32) + eta * gathered
    else:
        contracted = load_extracted(q, delta, eta, block * BM, q_m, M, BM, D, BD)  # R, (BM, BD)
    if SOFTMAX and REP_BLOCKS == 1:
        contracted, _ = contract_block(contracted, M, scale2, dtype, BM, PRECISION)
    elif SOFTMAX:
        mine = contracted.to(dtype)
        state = nothing_seen(BM, BD)
        for start in range(0, M, BM):
            theirs = load_extracted(q, delta, eta, start, q_m, M, BM, D, BD).to(dtype)
            valid = start + tl.arange(0, BM) < M
            state = attend(state, mine, theirs, theirs, valid, scale2, True, False, PRECISION)
        top, total, acc = state
        tl.store(lse_c + row + r, top + tl.log2(total), mask=r < M)
        contracted = acc / total[:, None]
    if REP_BLOCKS > 1:
        store_rows(c + row * D, block * BM, D, contracted, r < M, BM, D, BD)
    kappa = tl.load(step_out + h).to(tl.float32)
    store_rows(kappa_c + row * D, block * BM, D, kappa * contracted, r < M, BM, D, BD)


@triton.jit
def broadcast(
    w, q, mask, lse, kappa_c, out,
    H, N, M, chunk, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, REP_BLOCKS: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """O = κ·AᵀC. Grid (B·H, splits)."""
    follow(PDL)
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    w, q, out = head_of(w, b, h, w_b, w_h), head_of(q, b, h, q_b, q_h), head_of(out, b, h, o_b, o_h)
    row = bh.to(tl.int64) * M
    lse, kappa_c = lse + row, kappa_c + row * D
    first, end = split * chunk, tl.minimum((split + 1) * chunk, N)
    r = tl.arange(0, BM)
    if REP_BLOCKS == 1:
        queries = load_rows(q, 0, q_m, r < M, BM, D, BD)
        norm = tl.load(lse + r, mask=r < M, other=float("inf"))  # weight 0 for rows beyond M
        contracted = load_rows(kappa_c, 0, D, r < M, BM, D, BD)
        broadcast_backwards(
            queries, norm, contracted, w, out, mask, b, first, end, N, scale2, w_n, o_n,
            D, BD, BN, HAS_MASK, PRECISION,
        )  # fmt: skip
    else:
        for start in range(first, end, BN):
            valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
            tokens = load_rows(w, start, w_n, valid, BN, D, BD)  # (BN, BD)
            values = tl.zeros((BN, BD), tl.float32)
            for block in range(0, M, BM):
                inside = block + r < M
                queries = load_rows(q, block, q_m, inside, BM, D, BD)
                norm = tl.load(lse + block + r, mask=inside, other=float("inf"))
                contracted = load_rows(kappa_c, block, D, inside, BM, D, BD)
                values += spread_values(queries, tokens, norm, contracted, scale2, PRECISION)
            values = tl.where(valid[:, None], values, 0.0)
            store_rows(out, start, o_n, values, start + tl.arange(0, BN) < end, BN, D, BD)
