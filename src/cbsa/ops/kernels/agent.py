"""Kernels of Agent attention, CBSA∨: a broadcast by a softmax of its own, over the representatives.

O = P D, P = softmax_r(t·X Qᵀ), with the tokens' queries X and what the representatives gathered, D. Backward:
dD = PᵀG, dT = P∘(G Dᵀ − rowsum(P∘G Dᵀ)), dX = t·dT Q, dQ = t·dTᵀX. The extraction around it is that of
``forward.extract`` and ``backward.spread``. ``scale`` is t here. Padding is read as 0, so that it gets 0.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.ahead import announce, follow
from cbsa.ops.kernels.blocks import head_of, load_rows, real_tokens, store_rows
from cbsa.ops.kernels.steps import attend, nothing_seen, score_gradient, softmax_block


@triton.jit
def agent_broadcast(
    x, q, gathered, mask, out,
    H, N, M, chunk, scale2,
    x_b, x_h, x_n, q_b, q_h, q_m, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, REP_BLOCKS: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """O = softmax_r(t·X Qᵀ) D. Grid (B·H, splits)."""
    follow(PDL)
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    x, q, out = head_of(x, b, h, x_b, x_h), head_of(q, b, h, q_b, q_h), head_of(out, b, h, o_b, o_h)
    gathered += bh.to(tl.int64) * M * D
    r = tl.arange(0, BM)
    queries = load_rows(q, 0, q_m, r < M, BM, D, BD)  # the first block of representatives, (BM, BD)
    values = load_rows(gathered, 0, D, r < M, BM, D, BD)
    end = tl.minimum((split + 1) * chunk, N)
    for start in range(split * chunk, end, BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(x, start, x_n, valid, BN, D, BD)  # (BN, BD)
        state = attend(nothing_seen(BN, BD), tokens, queries, values, r < M, scale2, True, False, PRECISION)
        if REP_BLOCKS > 1:
            for block in range(BM, M, BM):
                inside = block + r < M
                more = load_rows(q, block, q_m, inside, BM, D, BD)
                more_values = load_rows(gathered, block, D, inside, BM, D, BD)
                state = attend(state, tokens, more, more_values, inside, scale2, True, False, PRECISION)
        _, total, acc = state
        result = acc / total[:, None]
        if HAS_MASK:
            result = tl.where(valid[:, None], result, 0.0)
        store_rows(out, start, o_n, result, start + tl.arange(0, BN) < end, BN, D, BD)


@triton.jit
def store_sums(
    part_d, part_q, row_dot, total_d, total_q, values, scale, bh, first, split, M,
    BM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Leave a split's sums of dD and t·dTᵀX for a block of representatives, (splits, B·H, M, D).

    Where there is one split, these are all there is, and ``row_dot`` takes δ; else it is None.
    """
    r = first + tl.arange(0, BM)
    place = (split.to(tl.int64) * tl.num_programs(0) + bh) * M
    store_rows(part_d + place * D, first, D, total_d, r < M, BM, D, BD)
    store_rows(part_q + place * D, first, D, total_q * scale, r < M, BM, D, BD)
    if row_dot is not None:
        tl.store(row_dot + place + r, rounded_dot(total_d, values, part_d.dtype.element_ty), mask=r < M)


@triton.jit
def rounded_dot(grad_delta, values, DTYPE: tl.constexpr):
    """δ = dD·D of dD as it is stored: what cancels must be rounded alike."""
    return tl.sum(grad_delta.to(DTYPE).to(tl.float32) * values.to(tl.float32), 1)


@triton.jit
def agent_spread(
    x, q, gathered, grad, mask, grad_x, part_d, part_q, row_dot,
    H, N, M, chunk, scale, scale2,
    x_b, x_h, x_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dX, and the splits' sums of dD and t·dTᵀX, where M ≤ BM. Grid (B·H, splits)."""
    announce(PDL)
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    x, grad = head_of(x, b, h, x_b, x_h), head_of(grad, b, h, g_b, g_h)
    grad_x = head_of(grad_x, b, h, o_b, o_h)
    r = tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), 0, q_m, r < M, BM, D, BD)
    values = load_rows(gathered + bh.to(tl.int64) * M * D, 0, D, r < M, BM, D, BD)
    scaled = (queries * scale).to(queries.dtype)
    total_d, total_q = tl.zeros((BM, BD), tl.float32), tl.zeros((BM, BD), tl.float32)
    end = tl.minimum((split + 1) * chunk, N)
    for start in range(split * chunk, end, BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(x, start, x_n, valid, BN, D, BD)
        gradients = load_rows(grad, start, g_n, valid, BN, D, BD)
        raw = tl.dot(tokens, tl.trans(queries), input_precision=PRECISION)  # (BN, BM)
        top, total, _ = nothing_seen(BN, BD)
        weights, _, total, _ = softmax_block(top, total, raw, scale2, r < M, True, False)
        weights = weights / total[:, None]  # P
        inner = weights * tl.dot(gradients, tl.trans(values), input_precision=PRECISION)
        scores = (inner - weights * tl.sum(inner, 1)[:, None]).to(tokens.dtype)  # dT
        result = tl.dot(scores, scaled, input_precision=PRECISION)
        store_rows(grad_x, start, o_n, result, start + tl.arange(0, BN) < end, BN, D, BD)
        weights = tl.trans(weights.to(tokens.dtype))
        total_d = tl.dot(weights, gradients, total_d, input_precision=PRECISION)
        total_q = tl.dot(tl.trans(scores), tokens, total_q, input_precision=PRECISION)
    store_sums(part_d, part_q, row_dot, total_d, total_q, values, scale, bh, 0, split, M, BM, D, BD)


@triton.jit
def agent_spread_from_blocks(
    x, q, gathered, grad, mask, grad_x, lse_x, dot_x,
    H, N, M, chunk, scale, scale2,
    x_b, x_h, x_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dX where M > BM, and of every token the log₂-sum-exp of P and rowsum(P∘G Dᵀ). Grid (B·H, splits)."""
    announce(PDL)
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    x, grad = head_of(x, b, h, x_b, x_h), head_of(grad, b, h, g_b, g_h)
    grad_x = head_of(grad_x, b, h, o_b, o_h)
    q = head_of(q, b, h, q_b, q_h)
    gathered += bh.to(tl.int64) * M * D
    r = tl.arange(0, BM)
    end = tl.minimum((split + 1) * chunk, N)
    for start in range(split * chunk, end, BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(x, start, x_n, valid, BN, D, BD)
        gradients = load_rows(grad, start, g_n, valid, BN, D, BD)
        top, total, acc = nothing_seen(BN, BD)
        along = tl.zeros((BN,), tl.float32)
        for block in range(0, M, BM):
            inside = block + r < M
            queries = load_rows(q, block, q_m, inside, BM, D, BD)
            values = load_rows(gathered, block, D, inside, BM, D, BD)
            raw = tl.dot(tokens, tl.trans(queries), input_precision=PRECISION)
            weights, top, total, shrink = softmax_block(top, total, raw, scale2, inside, True, False)
            inner = tl.dot(gradients, tl.trans(values), input_precision=PRECISION)
            along = along * shrink + tl.sum(weights * inner, 1)
        norm, along = top + tl.log2(total), along / total
        for block in range(0, M, BM):
            inside = block + r < M
            queries = load_rows(q, block, q_m, inside, BM, D, BD)
            values = load_rows(gathered, block, D, inside, BM, D, BD)
            _, scores = score_gradient(
                queries, tokens, gradients, None, norm, None, values, along, inside, scale2,
                1, False, PRECISION,
            )  # fmt: skip
            scaled = (queries * scale).to(queries.dtype)
            acc = tl.dot(scores, scaled, acc, input_precision=PRECISION)
        n = start + tl.arange(0, BN)
        store_rows(grad_x, start, o_n, acc, n < end, BN, D, BD)
        place = bh.to(tl.int64) * N + n
        tl.store(lse_x + place, norm, mask=n < end)
        tl.store(dot_x + place, along, mask=n < end)


@triton.jit
def agent_spread_to_reps(
    x, q, gathered, grad, mask, lse_x, dot_x, part_d, part_q, row_dot,
    H, N, M, chunk, scale, scale2,
    x_b, x_h, x_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The splits' sums of dD and t·dTᵀX where M > BM. Grid (B·H, blocks of representatives, splits)."""
    follow(PDL)
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    x, grad = head_of(x, b, h, x_b, x_h), head_of(grad, b, h, g_b, g_h)
    inside = block * BM + tl.arange(0, BM) < M
    queries = load_rows(head_of(q, b, h, q_b, q_h), block * BM, q_m, inside, BM, D, BD)
    values = load_rows(gathered + bh.to(tl.int64) * M * D, block * BM, D, inside, BM, D, BD)
    total_d, total_q = tl.zeros((BM, BD), tl.float32), tl.zeros((BM, BD), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, N), BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(x, start, x_n, valid, BN, D, BD)
        gradients = load_rows(grad, start, g_n, valid, BN, D, BD)
        n = start + tl.arange(0, BN)
        place = bh.to(tl.int64) * N + n
        norm = tl.load(lse_x + place, mask=n < N, other=0.0)
        along = tl.load(dot_x + place, mask=n < N, other=0.0)
        weights, scores = score_gradient(
            queries, tokens, gradients, None, norm, None, values, along, inside, scale2, 1, False, PRECISION
        )
        total_d = tl.dot(tl.trans(weights), gradients, total_d, input_precision=PRECISION)
        total_q = tl.dot(tl.trans(scores), tokens, total_q, input_precision=PRECISION)
    store_sums(part_d, part_q, row_dot, total_d, total_q, values, scale, bh, block * BM, split, M, BM, D, BD)


@triton.jit
def gathered_gradient(
    part_d, part_q, gathered, grad_delta, grad_q, row_dot,
    rows, splits,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dD and the broadcast's part of dQ from the splits' sums, in a fixed order, and δ = dD·D.

    Rows of all heads are one list (``rows`` = B·H·M). Grid (blocks of BR rows,).
    """
    follow(PDL)
    first = tl.program_id(0).to(tl.int64) * BR
    r = first + tl.arange(0, BR)
    total_d, total_q = tl.zeros((BR, BD), tl.float32), tl.zeros((BR, BD), tl.float32)
    for split in tl.range(0, splits, loop_unroll_factor=4):
        place = tl.cast(split, tl.int64) * rows * D
        total_d += load_rows(part_d + place, first, D, r < rows, BR, D, BD)
        total_q += load_rows(part_q + place, first, D, r < rows, BR, D, BD)
    values = load_rows(gathered, first, D, r < rows, BR, D, BD)
    tl.store(row_dot + r, rounded_dot(total_d, values, grad_delta.dtype.element_ty), mask=r < rows)
    store_rows(grad_delta, first, D, total_d, r < rows, BR, D, BD)
    store_rows(grad_q, first, D, total_q, r < rows, BR, D, BD)
