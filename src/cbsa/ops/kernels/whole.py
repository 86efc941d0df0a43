"""One launch for everything, where one program can serve a whole head: m ≤ BM, and few tokens or many heads.

Everything of size m stays on the chip, and nothing is kept for the backward but the inputs. The tokens are
read twice, the second time from the end: the last ones are still in the cache.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.ahead import announce
from cbsa.ops.kernels.blocks import head_of, load_rows, real_tokens, store_rows
from cbsa.ops.kernels.steps import (
    broadcast_backwards,
    contract_block,
    contract_block_gradient,
    gather_online,
    log_sum,
    softmax_block,
    spread_backwards,
)


@triton.jit
def forward_whole(
    w, v, q, mask, step_rep, step_out, out,
    H, N, M, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Extract, contract, broadcast. Grid (B·H,)."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    w, out = head_of(w, b, h, w_b, w_h), head_of(out, b, h, o_b, o_h)
    if v is not None:
        v = head_of(v, b, h, v_b, v_h)
    r = tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), 0, q_m, r < M, BM, D, BD)
    top, total, acc = gather_online(
        queries, w, v, mask, b, 0, N, N, scale2, w_n, v_n, D, BD, BM, BN, HAS_MASK, PRECISION
    )
    total, norm = log_sum(top, total)
    contracted = queries.to(tl.float32) + tl.load(step_rep + h).to(tl.float32) * (acc / total[:, None])  # R
    if SOFTMAX:
        contracted, _ = contract_block(contracted, M, scale2, queries.dtype, BM, PRECISION)
    contracted = (contracted * tl.load(step_out + h).to(tl.float32)).to(queries.dtype)
    norm = tl.where(r < M, norm, float("inf"))  # weight 0 for rows beyond M
    broadcast_backwards(
        queries, norm, contracted, w, out, mask, b, 0, N, N, scale2, w_n, o_n,
        D, BD, BN, HAS_MASK, PRECISION,
    )  # fmt: skip


@triton.jit
def gather_both_block(
    state, queries, w, v, grad, mask, b, start, N, scale2, w_n, v_n, g_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a block of tokens to (row maxima, row sums, unnormalised A w or A v, unnormalised A G)."""
    top, total, delta, gathered = state
    valid = real_tokens(mask, b, start, N, BN, EDGE, HAS_MASK)
    tokens = load_rows(w, start, w_n, valid, BN, D, BD)
    values = tokens if v is None else load_rows(v, start, v_n, valid, BN, D, BD)
    gradients = load_rows(grad, start, g_n, valid, BN, D, BD)
    raw = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION)
    weights, top, total, shrink = softmax_block(top, total, raw, scale2, valid, EDGE or HAS_MASK, HAS_MASK)
    weights = weights.to(tokens.dtype)
    delta = tl.dot(weights, values, delta * shrink[:, None], input_precision=PRECISION)
    gathered = tl.dot(weights, gradients, gathered * shrink[:, None], input_precision=PRECISION)
    return top, total, delta, gathered


@triton.jit
def gather_and_contract(
    queries, w, v, grad, mask, eta, kappa, b, N, M, scale, scale2, w_n, v_n, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, PEEL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The first pass of the backward over a whole head, and what the representatives make of it.

    Returns the log₂-sum-exp of A (infinity beyond M), C, dR, and of each representative dR·D and U·C. Without
    PEEL all blocks are treated as the last one, which takes fewer registers.
    """
    r = tl.arange(0, BM)
    state = (
        tl.full((BM,), float("-inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
        tl.zeros((BM, BD), tl.float32),
        tl.zeros((BM, BD), tl.float32),
    )
    full = (N if PEEL else N + BN - 1) // BN * BN
    for start in range(0, full, BN):
        state = gather_both_block(
            state, queries, w, v, grad, mask, b, start, N, scale2, w_n, v_n, g_n,
            D, BD, BN, not PEEL, HAS_MASK, PRECISION,
        )  # fmt: skip
    if full < N:
        state = gather_both_block(
            state, queries, w, v, grad, mask, b, full, N, scale2, w_n, v_n, g_n,
            D, BD, BN, True, HAS_MASK, PRECISION,
        )  # fmt: skip
    top, total, delta, gathered = state  # D and U, not yet normalised
    total, norm = log_sum(top, total)
    norm = tl.where(r < M, norm, float("inf"))
    delta = tl.where((r < M)[:, None], delta / total[:, None], 0.0)
    gathered = tl.where((r < M)[:, None], gathered / total[:, None], 0.0)
    contracted = queries.to(tl.float32) + eta * delta  # R
    if SOFTMAX:
        extracted = contracted
        contracted, weights = contract_block(extracted, M, scale2, queries.dtype, BM, PRECISION)
        grad_rows = contract_block_gradient(extracted, weights, gathered, scale, queries.dtype, PRECISION)
        grad_rows = tl.where((r < M)[:, None], kappa * grad_rows, 0.0)
    else:
        grad_rows = kappa * gathered
    return norm, contracted, grad_rows, tl.sum(grad_rows * delta, 1), tl.sum(gathered * contracted, 1)


@triton.jit
def backward_whole(
    w, v, q, grad, mask, step_rep, step_out,
    grad_w, grad_v, grad_q, part_step_rep, part_step_out,
    H, N, M, scale, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, WITH_Q: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """All gradients of one head, from the inputs alone. Grid (B·H,)."""
    announce(PDL)
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    w, grad = head_of(w, b, h, w_b, w_h), head_of(grad, b, h, g_b, g_h)
    if v is not None:
        v, grad_v = head_of(v, b, h, v_b, v_h), head_of(grad_v, b, h, o_b, o_h)
    eta, kappa = tl.load(step_rep + h).to(tl.float32), tl.load(step_out + h).to(tl.float32)
    r = tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), 0, q_m, r < M, BM, D, BD)
    norm, contracted, grad_rows, grad_steps, along = gather_and_contract(
        queries, w, v, grad, mask, eta, kappa, b, N, M, scale, scale2, w_n, v_n, g_n,
        D, BD, BM, BN, HAS_MASK, SOFTMAX, False, PRECISION,
    )  # fmt: skip
    tl.store(part_step_rep + bh, tl.sum(grad_steps, 0))
    tl.store(part_step_out + bh, tl.sum(along, 0))
    total = spread_backwards(
        grad_rows / scale, queries, norm, (kappa * contracted).to(queries.dtype),
        (eta * grad_rows).to(queries.dtype), kappa * along + eta * grad_steps,
        w, v, grad, head_of(grad_w, b, h, o_b, o_h), grad_v, mask, b, 0, N, N, scale, scale2,
        w_n, v_n, g_n, o_n, D, BD, BN, HAS_MASK, WITH_Q, False, PRECISION,
    )  # fmt: skip
    if WITH_Q:
        store_rows(grad_q + bh.to(tl.int64) * M * D, 0, D, total * scale, r < M, BM, D, BD)


@triton.jit
def gather_whole(
    w, v, q, grad, mask, step_rep, step_out,
    lse, grad_r, grad_delta, kappa_c, row_dot, part_step_rep, part_step_out,
    H, N, M, scale, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first pass of the backward alone: what ``backward.spread`` needs. Grid (B·H,)."""
    announce(PDL)
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    if v is not None:
        v = head_of(v, b, h, v_b, v_h)
    eta, kappa = tl.load(step_rep + h).to(tl.float32), tl.load(step_out + h).to(tl.float32)
    r = tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), 0, q_m, r < M, BM, D, BD)
    norm, contracted, grad_rows, grad_steps, along = gather_and_contract(
        queries, head_of(w, b, h, w_b, w_h), v, head_of(grad, b, h, g_b, g_h), mask, eta, kappa, b, N, M,
        scale, scale2, w_n, v_n, g_n, D, BD, BM, BN, HAS_MASK, SOFTMAX, True, PRECISION,
    )  # fmt: skip
    tl.store(part_step_rep + bh, tl.sum(grad_steps, 0))
    tl.store(part_step_out + bh, tl.sum(along, 0))
    row = bh.to(tl.int64) * M
    tl.store(lse + row + r, norm, mask=r < M)
    tl.store(row_dot + row + r, kappa * along + eta * grad_steps, mask=r < M)
    store_rows(grad_r + row * D, 0, D, grad_rows, r < M, BM, D, BD)
    store_rows(grad_delta + row * D, 0, D, eta * grad_rows, r < M, BM, D, BD)
    store_rows(kappa_c + row * D, 0, D, kappa * contracted, r < M, BM, D, BD)
