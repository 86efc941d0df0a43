"""Kernels of the backward: gather the output gradient, contract it, spread it to tokens and representatives.

Names are those of README.md: U = A G, dR, dD = η·dR, δ, dS = A∘(κ·C Gᵀ + dD wᵀ − δ).
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.blocks import load_rows, real_tokens, store_rows
from cbsa.ops.kernels.forward import load_extracted


@triton.jit
def gather(
    w, q, grad, mask, lse, u,
    H, N, M, chunk, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """U = A G, one sum for each split (splits, B·H, M, D). Grid (B·H, blocks of representatives, splits)."""
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    grad += b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
    r = block * BM + tl.arange(0, BM)
    row = bh.to(tl.int64) * M
    queries = load_rows(q, r, q_m, r < M, D, BD)
    norm = tl.load(lse + row + r, mask=r < M, other=float("inf"))
    acc = tl.zeros((BM, BD), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, N), BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        gradients = load_rows(grad, n, g_n, valid, D, BD)  # 0 for padding: its weight does not matter
        scores = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION) * scale2
        weights = tl.exp2(scores - norm[:, None])  # (BM, BN)
        acc += tl.dot(weights.to(gradients.dtype), gradients, input_precision=PRECISION)
    row += split.to(tl.int64) * tl.num_programs(0) * M
    store_rows(u + row * D, r, D, acc, r < M, D, BD)


@triton.jit
def contract_gradient(
    mine, gathered, along, norm, theirs, their_u, their_along, their_norm, scale, scale2,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What the representatives R_j contribute to dR_i, over κ.

    RRᵀ is symmetric, so that a block of B and the transposed block come from one product: with u = U·C,
    Σ_j B_ji U_j + s·(B_ij(U_i·R_j − u_i) + B_ji(U_j·R_i − u_j)) R_j. Rows and columns beyond M have a norm of
    infinity, so that their weights are 0.
    """
    scores = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * scale2  # (BM, BM)
    ours = tl.exp2(scores - norm[:, None])  # B_ij
    turned = tl.exp2(scores - their_norm[None, :])  # B_ji
    direct = tl.dot(gathered, tl.trans(theirs), input_precision=PRECISION) - along[:, None]
    crossed = tl.dot(mine, tl.trans(their_u), input_precision=PRECISION) - their_along[None, :]
    both = scale * (ours * direct + turned * crossed)
    spread_back = tl.dot(turned, their_u, input_precision=PRECISION)
    return spread_back + tl.dot(both, theirs, input_precision=PRECISION)


@triton.jit
def contract_backward(
    q, delta, c, lse_c, u, step_rep, step_out,
    grad_r, grad_delta, kappa_c, row_dot, part_step_rep, part_step_out,
    H, M, scale, scale2,
    q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, SOFTMAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dR and what follows from it for a block of representatives. Grid (B·H, blocks)."""
    bh, block = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    row = bh.to(tl.int64) * M
    delta += row * D
    eta, kappa = tl.load(step_rep + h).to(tl.float32), tl.load(step_out + h).to(tl.float32)
    i = block * BM + tl.arange(0, BM)
    gathered = load_rows(u + row * D, i, D, i < M, D, BD)  # U, (BM, BD)
    contracted = load_rows(c + row * D, i, D, i < M, D, BD)
    along = tl.sum(gathered * contracted, 1)  # U_i·C_i
    if SOFTMAX:
        mine = load_extracted(q, delta, eta, i, q_m, M, D, BD)
        norm = tl.load(lse_c + row + i, mask=i < M, other=float("inf"))
        acc = tl.zeros((BM, BD), tl.float32)
        for start in range(0, M, BM):
            j = start + tl.arange(0, BM)
            theirs = load_extracted(q, delta, eta, j, q_m, M, D, BD)
            their_u = load_rows(u + row * D, j, D, j < M, D, BD)
            their_c = load_rows(c + row * D, j, D, j < M, D, BD)
            their_norm = tl.load(lse_c + row + j, mask=j < M, other=float("inf"))
            acc += contract_gradient(
                mine, gathered, along, norm, theirs, their_u, tl.sum(their_u * their_c, 1), their_norm,
                scale, scale2, PRECISION,
            )  # fmt: skip
        grad_rows = kappa * acc
    else:
        grad_rows = kappa * gathered
    deltas = load_rows(delta, i, D, i < M, D, BD)
    grad_steps = tl.sum(grad_rows * deltas, 1)  # dR_i·D_i
    store_rows(grad_r + row * D, i, D, grad_rows, i < M, D, BD)
    store_rows(grad_delta + row * D, i, D, eta * grad_rows, i < M, D, BD)
    store_rows(kappa_c + row * D, i, D, kappa * contracted, i < M, D, BD)
    tl.store(row_dot + row + i, kappa * along + eta * grad_steps, mask=i < M)
    place = bh * tl.num_programs(1) + block
    tl.store(part_step_rep + place, tl.sum(grad_steps, 0))
    tl.store(part_step_out + place, tl.sum(along, 0))


@triton.jit
def score_gradient(
    queries, tokens, gradients, norm, kappa_c, grad_delta, row_dot, scale2, PRECISION: tl.constexpr
):
    """A (BM, BN) and dS of a block of representatives and one of tokens."""
    scores = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION) * scale2
    weights = tl.exp2(scores - norm[:, None])
    inner = tl.dot(kappa_c, tl.trans(gradients), input_precision=PRECISION)
    inner += tl.dot(grad_delta, tl.trans(tokens), input_precision=PRECISION)
    return weights, weights * (inner - row_dot[:, None])


@triton.jit
def spread(
    w, q, grad, mask, lse, kappa_c, grad_delta, row_dot, grad_w, grad_q,
    H, N, M, chunk, scale, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, WITH_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw = Aᵀ dD + s·dSᵀ Q, and with WITH_Q, where M ≤ BM, the splits' sums of s·dS w.

    Grid (B·H, splits).
    """
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    grad += b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
    grad_w += b.to(tl.int64) * o_b + h.to(tl.int64) * o_h
    row = bh.to(tl.int64) * M
    total = tl.zeros((BM, BD), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, N), BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        gradients = load_rows(grad, n, g_n, valid, D, BD)
        acc = tl.zeros((BN, BD), tl.float32)
        for first in range(0, M, BM):
            r = first + tl.arange(0, BM)
            queries = load_rows(q, r, q_m, r < M, D, BD)
            deltas = load_rows(grad_delta + row * D, r, D, r < M, D, BD)
            norm = tl.load(lse + row + r, mask=r < M, other=float("inf"))
            dot = tl.load(row_dot + row + r, mask=r < M, other=0.0)
            contracted = load_rows(kappa_c + row * D, r, D, r < M, D, BD)
            weights, scores = score_gradient(
                queries, tokens, gradients, norm, contracted, deltas, dot, scale2, PRECISION
            )
            scores = (tl.where(valid[None, :], scores, 0.0) * scale).to(tokens.dtype)
            acc += tl.dot(tl.trans(weights.to(tokens.dtype)), deltas, input_precision=PRECISION)
            acc += tl.dot(tl.trans(scores), queries, input_precision=PRECISION)
            if WITH_Q:
                total += tl.dot(scores, tokens, input_precision=PRECISION)
        store_rows(grad_w, n, o_n, tl.where(valid[:, None], acc, 0.0), n < N, D, BD)
    if WITH_Q:
        r = tl.arange(0, BM)
        row += split.to(tl.int64) * tl.num_programs(0) * M
        store_rows(grad_q + row * D, r, D, total, r < M, D, BD)


@triton.jit
def spread_to_queries(
    w, q, grad, mask, lse, kappa_c, grad_delta, row_dot, grad_q,
    H, N, M, chunk, scale, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The splits' sums of s·dS w where M > BM. Grid (B·H, blocks of representatives, splits)."""
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    w += b.to(tl.int64) * w_b + h.to(tl.int64) * w_h
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    grad += b.to(tl.int64) * g_b + h.to(tl.int64) * g_h
    row = bh.to(tl.int64) * M
    r = block * BM + tl.arange(0, BM)
    queries = load_rows(q, r, q_m, r < M, D, BD)
    deltas = load_rows(grad_delta + row * D, r, D, r < M, D, BD)
    contracted = load_rows(kappa_c + row * D, r, D, r < M, D, BD)
    norm = tl.load(lse + row + r, mask=r < M, other=float("inf"))
    dot = tl.load(row_dot + row + r, mask=r < M, other=0.0)
    total = tl.zeros((BM, BD), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, N), BN):
        n = start + tl.arange(0, BN)
        valid = real_tokens(mask, b, n, N, HAS_MASK)
        tokens = load_rows(w, n, w_n, valid, D, BD)
        gradients = load_rows(grad, n, g_n, valid, D, BD)
        _, scores = score_gradient(
            queries, tokens, gradients, norm, contracted, deltas, dot, scale2, PRECISION
        )
        scores = (tl.where(valid[None, :], scores, 0.0) * scale).to(tokens.dtype)
        total += tl.dot(scores, tokens, input_precision=PRECISION)
    row += split.to(tl.int64) * tl.num_programs(0) * M
    store_rows(grad_q + row * D, r, D, total, r < M, D, BD)
