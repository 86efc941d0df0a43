"""Kernels of the forward: extract (and merge), contract, broadcast."""

import triton
import triton.language as tl

from cbsa.ops.kernels.blocks import load_rows, real_tokens, store_rows


@triton.jit
def gather_online(
    queries, w, mask, b, first, last, N, scale2, w_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row maxima, row sums and unnormalised A w over the tokens from ``first`` to ``last``, online."""
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for start in range(first, last, BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)  # (BN, BD)
        scores = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION) * scale2  # (BM, BN)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing but padding so far
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(tokens.dtype), tokens, input_precision=PRECISION)
        top = new_top
    return top, total, acc


@triton.jit
def finish_gathering(top, total, acc):
    """D and the log₂-sum-exp from what :func:`gather_online` returns; both are 0 if all was padding."""
    some = total > 0
    total = tl.where(some, total, 1.0)
    return acc / total[:, None], tl.where(some, top + tl.log2(total), 0.0)


@triton.jit
def spread_block(queries, tokens, norm, contracted, scale2, PRECISION: tl.constexpr):
    """AᵀC of a block of tokens (BN, BD) and one of representatives (BM, BD)."""
    scores = tl.dot(tokens, tl.trans(queries), input_precision=PRECISION) * scale2  # (BN, BM)
    weights = tl.exp2(scores - norm[None, :])
    return tl.dot(weights.to(tokens.dtype), contracted.to(tokens.dtype), input_precision=PRECISION)


@triton.jit
def extract(
    w, q, mask, delta, lse, part_max, part_sum, part_acc,
    H, N, M, chunk, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """D = A w and the log-sum-exp of A's rows, online over the tokens.

    Grid (B·H, blocks of representatives, splits). With SPLIT, each split leaves its row maxima, sums and
    accumulators (splits, B·H, M[, D]) for :func:`merge`.
    """
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    r = block * BM + tl.arange(0, BM)
    queries = load_rows(q, r, q_m, r < M, D, BD)  # (BM, BD)
    top, total, acc = gather_online(
        queries, w, mask, b, split * chunk, tl.minimum((split + 1) * chunk, N), N, scale2, w_n,
        D, BD, BM, BN, HAS_MASK, PRECISION,
    )  # fmt: skip
    row = bh.to(tl.int64) * M
    if SPLIT:
        row += split.to(tl.int64) * tl.num_programs(0) * M
        tl.store(part_max + row + r, top, mask=r < M)
        tl.store(part_sum + row + r, total, mask=r < M)
        store_rows(part_acc + row * D, r, D, acc, r < M, D, BD)
    else:
        gathered, norm = finish_gathering(top, total, acc)
        tl.store(lse + row + r, norm, mask=r < M)
        store_rows(delta + row * D, r, D, gathered, r < M, D, BD)


@triton.jit
def merge(
    delta, lse, part_max, part_sum, part_acc,
    M, splits,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Put the splits of :func:`extract` together, in their order: the same bits on every run."""
    bh, block = tl.program_id(0), tl.program_id(1)
    r = block * BM + tl.arange(0, BM)
    row, step = bh.to(tl.int64) * M, tl.num_programs(0).to(tl.int64) * M
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for split in range(splits):
        here = row + split * step
        their_top = tl.load(part_max + here + r, mask=r < M, other=float("-inf"))
        new_top = tl.maximum(top, their_top)
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        ours, theirs = tl.exp2(top - safe), tl.exp2(their_top - safe)
        total = total * ours + tl.load(part_sum + here + r, mask=r < M, other=0.0) * theirs
        acc = acc * ours[:, None] + load_rows(part_acc + here * D, r, D, r < M, D, BD) * theirs[:, None]
        top = new_top
    gathered, norm = finish_gathering(top, total, acc)
    tl.store(lse + row + r, norm, mask=r < M)
    store_rows(delta + row * D, r, D, gathered, r < M, D, BD)


@triton.jit
def load_extracted(q, delta, eta, r, q_m, M, D: tl.constexpr, BD: tl.constexpr):
    """R = Q + η·D of rows ``r``, in float32."""
    initial = load_rows(q, r, q_m, r < M, D, BD).to(tl.float32)
    return initial + eta * load_rows(delta, r, D, r < M, D, BD)


@triton.jit
def contract(
    q, delta, step_rep, c, lse_c,
    H, M, scale2,
    q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, SOFTMAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C = softmax(s·RRᵀ)R, or R itself, and the log-sum-exp of the softmax. Grid (B·H, blocks)."""
    bh, block = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    row = bh.to(tl.int64) * M
    delta += row * D
    eta = tl.load(step_rep + h).to(tl.float32)
    r = block * BM + tl.arange(0, BM)
    mine = load_extracted(q, delta, eta, r, q_m, M, D, BD)  # (BM, BD)
    if SOFTMAX:
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BD), tl.float32)
        for start in range(0, M, BM):
            k = start + tl.arange(0, BM)
            theirs = load_extracted(q, delta, eta, k, q_m, M, D, BD)
            scores = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * scale2
            scores = tl.where((k < M)[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            acc = acc * shrink[:, None] + tl.dot(weights, theirs, input_precision=PRECISION)
            top = new_top
        tl.store(lse_c + row + r, top + tl.log2(total), mask=r < M)
        mine = acc / total[:, None]
    store_rows(c + row * D, r, D, mine, r < M, D, BD)


@triton.jit
def broadcast(
    w, q, mask, lse, c, step_out, out,
    H, N, M, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O = κ·AᵀC. Grid (B·H, blocks of tokens)."""
    bh, block = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    row = bh.to(tl.int64) * M
    n = block * BN + tl.arange(0, BN)
    valid = real_tokens(mask, b, n, N, HAS_MASK)
    tokens = load_rows(w, n, w_n, valid, D, BD)  # (BN, BD)
    acc = tl.zeros((BN, BD), tl.float32)
    for start in range(0, M, BM):
        r = start + tl.arange(0, BM)
        queries = load_rows(q, r, q_m, r < M, D, BD)
        norm = tl.load(lse + row + r, mask=r < M, other=float("inf"))  # weight 0 for rows beyond M
        contracted = load_rows(c + row * D, r, D, r < M, D, BD)
        acc += spread_block(queries, tokens, norm, contracted, scale2, PRECISION)
    acc = tl.where(valid[:, None], acc * tl.load(step_out + h).to(tl.float32), 0.0)
    store_rows(out + b.to(tl.int64) * o_b + h.to(tl.int64) * o_h, n, o_n, acc, n < N, D, BD)
