"""One launch for everything, where one program can serve a whole head: m ≤ BM, and enough heads and images.

The tokens are read twice, the second time from the cache; D, C and everything of size m stay on the chip.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.backward import contract_gradient, score_gradient
from cbsa.ops.kernels.blocks import load_rows, real_tokens, store_rows
from cbsa.ops.kernels.forward import finish_gathering, gather_online, load_extracted, spread_block


@triton.jit
def forward_whole(
    w, q, mask, step_rep, step_out, out, delta, lse, c, lse_c,
    H, N, M, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Extract, contract, broadcast. Grid (B·H,)."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    out += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    row = bh.to(tl.int64) * M
    r = tl.arange(0, BM)
    queries = load_rows(q, r, q_m, r < M, D, BD)
    top, total, acc = gather_online(
        queries, w, mask, b, 0, N, N, scale2, w_n, D, BD, BM, BN, HAS_MASK, PRECISION
    )
    gathered, norm = finish_gathering(top, total, acc)
    contracted = queries.to(tl.float32) + tl.load(step_rep + h).to(tl.float32) * gathered  # R
    if SOFTMAX:
        scores = tl.dot(contracted, tl.trans(contracted), input_precision=PRECISION) * scale2
        scores = tl.where((r < M)[None, :], scores, float("-inf"))
        highest = tl.max(scores, 1)
        weights = tl.exp2(scores - highest[:, None])
        sums = tl.sum(weights, 1)
        contracted = tl.dot(weights, contracted, input_precision=PRECISION) / sums[:, None]
        tl.store(lse_c + row + r, highest + tl.log2(sums), mask=r < M)
    tl.store(lse + row + r, norm, mask=r < M)
    store_rows(delta + row * D, r, D, gathered, r < M, D, BD)
    store_rows(c + row * D, r, D, contracted, r < M, D, BD)
    kappa = tl.load(step_out + h).to(tl.float32)
    norm = tl.where(r < M, norm, float("inf"))  # weight 0 for rows beyond M
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        values = kappa * spread_block(queries, tokens, norm, contracted, scale2, PRECISION)
        store_rows(out, n, o_n, tl.where(valid[:, None], values, 0.0), n < N, D, BD)


@triton.jit
def backward_whole(
    w, q, grad, mask, step_rep, step_out, delta, lse, c, lse_c,
    grad_w, grad_q, part_step_rep, part_step_out,
    H, N, M, scale, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, SOFTMAX: tl.constexpr, WITH_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of one head. Grid (B·H,)."""
    bh = tl.program_id(0)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    grad += b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
    grad_w += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    row = bh.to(tl.int64) * M
    delta += row * D
    eta, kappa = tl.load(step_rep + h).to(tl.float32), tl.load(step_out + h).to(tl.float32)
    r = tl.arange(0, BM)
    queries = load_rows(q, r, q_m, r < M, D, BD)
    norm = tl.load(lse + row + r, mask=r < M, other=float("inf"))
    gathered = tl.zeros((BM, BD), tl.float32)  # U
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        gradients = load_rows(grad, n, g_n, valid, D, BD)
        scores = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION) * scale2
        weights = tl.exp2(scores - norm[:, None])
        gathered += tl.dot(weights.to(tokens.dtype), gradients, input_precision=PRECISION)
    contracted = load_rows(c + row * D, r, D, r < M, D, BD)
    along = tl.sum(gathered * contracted, 1)
    if SOFTMAX:
        extracted = load_extracted(q, delta, eta, r, q_m, M, D, BD)
        norm_c = tl.load(lse_c + row + r, mask=r < M, other=float("inf"))
        grad_rows = kappa * contract_gradient(
            extracted, gathered, along, norm_c, extracted, gathered, along, norm_c, scale, scale2, PRECISION
        )
    else:
        grad_rows = kappa * gathered
    grad_steps = tl.sum(grad_rows * load_rows(delta, r, D, r < M, D, BD), 1)
    tl.store(part_step_rep + bh, tl.sum(grad_steps, 0))
    tl.store(part_step_out + bh, tl.sum(along, 0))
    row_dot = kappa * along + eta * grad_steps
    kappa_c = (kappa * contracted).to(queries.dtype)
    deltas = (eta * grad_rows).to(queries.dtype)
    total = tl.zeros((BM, BD), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        gradients = load_rows(grad, n, g_n, valid, D, BD)
        weights, scores = score_gradient(
            queries, tokens, gradients, norm, kappa_c, deltas, row_dot, scale2, PRECISION
        )
        scores = (tl.where(valid[None, :], scores, 0.0) * scale).to(tokens.dtype)
        values = tl.dot(tl.trans(weights.to(tokens.dtype)), deltas, input_precision=PRECISION)
        values += tl.dot(tl.trans(scores), queries, input_precision=PRECISION)
        store_rows(grad_w, n, o_n, tl.where(valid[:, None], values, 0.0), n < N, D, BD)
        if WITH_Q:
            total += tl.dot(scores, tokens, input_precision=PRECISION)
    if WITH_Q:
        store_rows(grad_q + row * D, r, D, grad_rows + total, r < M, D, BD)
