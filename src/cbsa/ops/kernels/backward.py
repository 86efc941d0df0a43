"""Kernels of the backward over split tokens: gather the output gradient, contract it, spread it.

Names are those of README.md: U = A G, dR, dD = η·dR, δ, dS = A∘(κ·C Gᵀ + dD wᵀ − δ).
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.ahead import announce, follow
from cbsa.ops.kernels.blocks import head_of, load_rows, real_tokens, store_rows
from cbsa.ops.kernels.forward import load_extracted
from cbsa.ops.kernels.steps import contract_block, contract_block_gradient, score_gradient, spread_backwards


@triton.jit
def gather_gradient_block(
    acc, queries, norm, w, grad, mask, b, start, N, scale2, w_n, g_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add A G of a block of tokens; G is 0 where there is padding, whose weight is of no matter then."""
    valid = real_tokens(mask, b, start, N, BN, EDGE, HAS_MASK)
    tokens = load_rows(w, start, w_n, valid, BN, D, BD)
    gradients = load_rows(grad, start, g_n, valid, BN, D, BD)
    raw = tl.dot(queries, tl.trans(tokens), input_precision=PRECISION)
    weights = tl.exp2(raw * scale2 - norm[:, None])  # (BM, BN)
    if EDGE or HAS_MASK:
        weights = tl.where(valid[None, :], weights, 0.0)
    return tl.dot(weights.to(gradients.dtype), gradients, acc, input_precision=PRECISION)


@triton.jit
def gather(
    w, q, grad, mask, lse, u,
    H, N, M, chunk, scale2,
    w_b, w_h, w_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """U = A G, one sum for each split (splits, B·H, M, D). Grid (B·H, blocks of representatives, splits)."""
    announce(PDL)
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    w, grad = head_of(w, b, h, w_b, w_h), head_of(grad, b, h, g_b, g_h)
    r = block * BM + tl.arange(0, BM)
    queries = load_rows(head_of(q, b, h, q_b, q_h), block * BM, q_m, r < M, BM, D, BD)
    norm = tl.load(lse + bh.to(tl.int64) * M + r, mask=r < M, other=float("inf"))
    acc = tl.zeros((BM, BD), tl.float32)
    first, end = split * chunk, tl.minimum((split + 1) * chunk, N)
    full = first + (end - first) // BN * BN
    for start in range(first, full, BN):
        acc = gather_gradient_block(
            acc, queries, norm, w, grad, mask, b, start, N, scale2, w_n, g_n,
            D, BD, BN, False, HAS_MASK, PRECISION,
        )  # fmt: skip
    if full < end:
        acc = gather_gradient_block(
            acc, queries, norm, w, grad, mask, b, full, N, scale2, w_n, g_n,
            D, BD, BN, True, HAS_MASK, PRECISION,
        )  # fmt: skip
    row = (split.to(tl.int64) * tl.num_programs(0) + bh) * M
    store_rows(u + row * D, block * BM, D, acc, r < M, BM, D, BD)


@triton.jit
def add_steps(
    part_step_rep, part_step_out, grad_step_rep, grad_step_out,
    B, H, blocks,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gradients of the steps from their parts (B, H, blocks), in a fixed order. Grid (H,)."""
    follow(PDL)
    h = tl.program_id(0)
    rep = tl.zeros((BLOCK,), tl.float32)
    out = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, B * blocks, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // blocks * H + h) * blocks + i % blocks
        rep += tl.load(part_step_rep + place, mask=i < B * blocks, other=0.0)
        out += tl.load(part_step_out + place, mask=i < B * blocks, other=0.0)
    tl.store(grad_step_rep + h, tl.sum(rep, 0).to(grad_step_rep.dtype.element_ty))
    tl.store(grad_step_out + h, tl.sum(out, 0).to(grad_step_out.dtype.element_ty))


@triton.jit
def contract_gradient(
    mine, gathered, along, norm, theirs, their_u, their_along, their_norm, scale, scale2,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
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
    spread_back = tl.dot(turned.to(DTYPE), their_u, input_precision=PRECISION)
    return tl.dot(both.to(DTYPE), theirs, spread_back, input_precision=PRECISION)


@triton.jit
def contract_backward(
    q, delta, c, lse_c, u, step_rep, step_out,
    grad_r, grad_delta, kappa_c, row_dot, part_step_rep, part_step_out,
    H, M, splits, scale, scale2,
    q_b, q_h, q_m,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, REP_BLOCKS: tl.constexpr,
    SOFTMAX: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dR and what follows from it for a block of representatives. Grid (B·H, blocks).

    U comes in ``splits`` parts, which are added up; with several blocks it is one.
    """
    follow(PDL)
    bh, block = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    q = head_of(q, b, h, q_b, q_h)
    dtype = q.dtype.element_ty
    row = bh.to(tl.int64) * M
    delta, u, c = delta + row * D, u + row * D, c + row * D
    eta, kappa = tl.load(step_rep + h).to(tl.float32), tl.load(step_out + h).to(tl.float32)
    first = block * BM
    i = first + tl.arange(0, BM)
    gathered = load_rows(u, first, D, i < M, BM, D, BD)  # U, (BM, BD)
    for split in tl.range(1, splits, loop_unroll_factor=4):
        part = u + tl.cast(split, tl.int64) * tl.num_programs(0) * M * D
        gathered += load_rows(part, first, D, i < M, BM, D, BD)
    if REP_BLOCKS == 1:
        extracted = load_extracted(q, delta, eta, 0, q_m, M, BM, D, BD)
        if SOFTMAX:
            contracted, weights = contract_block(extracted, M, scale2, dtype, BM, PRECISION)
            grad_rows = kappa * contract_block_gradient(extracted, weights, gathered, scale, dtype, PRECISION)
            grad_rows = tl.where((i < M)[:, None], grad_rows, 0.0)
        else:
            contracted, grad_rows = extracted, kappa * gathered
    else:
        contracted = load_rows(c, first, D, i < M, BM, D, BD)
        grad_rows = kappa * gathered
    if SOFTMAX and REP_BLOCKS > 1:
        mine, my_u = load_extracted(q, delta, eta, first, q_m, M, BM, D, BD).to(dtype), gathered.to(dtype)
        norm = tl.load(lse_c + row + i, mask=i < M, other=float("inf"))
        acc = tl.zeros((BM, BD), tl.float32)
        for start in range(0, M, BM):
            j = start + tl.arange(0, BM)
            theirs = load_extracted(q, delta, eta, start, q_m, M, BM, D, BD).to(dtype)
            their_u = load_rows(u, start, D, j < M, BM, D, BD).to(dtype)
            their_c = load_rows(c, start, D, j < M, BM, D, BD)
            their_norm = tl.load(lse_c + row + j, mask=j < M, other=float("inf"))
            acc += contract_gradient(
                mine, my_u, tl.sum(my_u * contracted, 1), norm,
                theirs, their_u, tl.sum(their_u * their_c, 1), their_norm,
                scale, scale2, dtype, PRECISION,
            )  # fmt: skip
        grad_rows = kappa * acc
    along = tl.sum(gathered * contracted, 1)  # U_i·C_i
    grad_steps = tl.sum(grad_rows * load_rows(delta, first, D, i < M, BM, D, BD), 1)  # dR_i·D_i
    store_rows(grad_r + row * D, first, D, grad_rows, i < M, BM, D, BD)
    store_rows(grad_delta + row * D, first, D, eta * grad_rows, i < M, BM, D, BD)
    store_rows(kappa_c + row * D, first, D, kappa * contracted, i < M, BM, D, BD)
    tl.store(row_dot + row + i, kappa * along + eta * grad_steps, mask=i < M)
    place = bh * tl.num_programs(1) + block
    tl.store(part_step_rep + place, tl.sum(grad_steps, 0))
    tl.store(part_step_out + place, tl.sum(along, 0))


@triton.jit
def load_contracted(
    q, lse, kappa_c, grad_delta, row_dot, first, q_m, M, BM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr
):
    """What a block of representatives gives to the gradient of the scores: Q, lse, κC, dD and δ."""
    valid = first + tl.arange(0, BM) < M
    r = first + tl.arange(0, BM)
    return (
        load_rows(q, first, q_m, valid, BM, D, BD),
        tl.load(lse + r, mask=valid, other=float("inf")),
        load_rows(kappa_c, first, D, valid, BM, D, BD),
        load_rows(grad_delta, first, D, valid, BM, D, BD),
        tl.load(row_dot + r, mask=valid, other=0.0),
    )


@triton.jit
def spread(
    w, v, q, grad, mask, lse, kappa_c, grad_delta, row_dot, grad_w, grad_v, grad_q,
    H, N, M, heads, deal, extra, shares, scale, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, WITH_Q: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """dw = AᵀdD + s·dSᵀQ, and with WITH_Q sums of s·dS w, where M ≤ BM. Grid (programs,).

    With v, dv = AᵀdD and dw = s·dSᵀQ; without ``grad``, dS = A∘(dD vᵀ − δ): the weights broadcast nothing.
    The blocks of tokens of all ``heads`` (B·H) are dealt out, ``deal`` to each program and one more to the
    first ``extra``, so that a program may begin in one head and end in another. The programs that have a
    share of a head leave their sums one after the other, (shares, B·H, M, D); what remains is 0.
    """
    follow(PDL)
    program = tl.program_id(0)
    blocks = (N + BN - 1) // BN
    begin = program * deal + tl.minimum(program, extra)
    stop = begin + deal + (program < extra).to(tl.int32)
    for bh in range(begin // blocks, (stop + blocks - 1) // blocks):
        b, h = bh // H, bh % H
        row = tl.cast(bh, tl.int64) * M
        first = tl.maximum(begin - bh * blocks, 0) * BN
        end = tl.minimum(tl.minimum(stop - bh * blocks, blocks) * BN, N)
        queries, norm, contracted, deltas, dot = load_contracted(
            head_of(q, b, h, q_b, q_h), lse + row, kappa_c + row * D, grad_delta + row * D, row_dot + row,
            0, q_m, M, BM, D, BD,
        )  # fmt: skip
        total = tl.zeros((BM, BD), tl.float32)
        total = spread_backwards(
            total, queries, norm, contracted, deltas, dot,
            head_of(w, b, h, w_b, w_h), None if v is None else head_of(v, b, h, v_b, v_h),
            None if grad is None else head_of(grad, b, h, g_b, g_h), head_of(grad_w, b, h, o_b, o_h),
            None if v is None else head_of(grad_v, b, h, o_b, o_h),
            mask, b, first, end, N, scale, scale2, w_n, v_n, g_n, o_n,
            D, BD, BN, HAS_MASK, WITH_Q, True, PRECISION,
        )  # fmt: skip
        if WITH_Q:
            valid = tl.arange(0, BM) < M
            place = bh * blocks  # of the head's first block; and the program that has it
            much = extra * (deal + 1)
            opener = tl.where(place < much, place // (deal + 1), extra + (place - much) // deal)
            share = program - opener
            target = grad_q + row * D
            size = tl.cast(heads, tl.int64) * M * D
            store_rows(target + share * size, 0, D, total * scale, valid, BM, D, BD)
            if stop >= place + blocks:
                for other in range(share + 1, shares):
                    nothing = tl.zeros((BM, BD), tl.float32)
                    store_rows(target + other * size, 0, D, nothing, valid, BM, D, BD)


@triton.jit
def spread_from_blocks(
    w, v, q, grad, mask, lse, kappa_c, grad_delta, row_dot, grad_w, grad_v,
    H, N, M, chunk, scale, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, g_b, g_h, g_n, o_b, o_h, o_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What :func:`spread` gives to tokens, where M > BM. Grid (B·H, splits)."""
    follow(PDL)
    bh, split = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    w, q = head_of(w, b, h, w_b, w_h), head_of(q, b, h, q_b, q_h)
    if grad is not None:
        grad = head_of(grad, b, h, g_b, g_h)
    if v is not None:
        v, grad_v = head_of(v, b, h, v_b, v_h), head_of(grad_v, b, h, o_b, o_h)
    grad_w = head_of(grad_w, b, h, o_b, o_h)
    row = bh.to(tl.int64) * M
    lse, row_dot, kappa_c, grad_delta = lse + row, row_dot + row, kappa_c + row * D, grad_delta + row * D
    first, end = split * chunk, tl.minimum((split + 1) * chunk, N)
    for start in range(first, end, BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(w, start, w_n, valid, BN, D, BD)
        values = tokens if v is None else load_rows(v, start, v_n, valid, BN, D, BD)
        gradients = None if grad is None else load_rows(grad, start, g_n, valid, BN, D, BD)
        acc = tl.zeros((BN, BD), tl.float32)
        acc_v = None if v is None else tl.zeros((BN, BD), tl.float32)
        for block in range(0, M, BM):
            queries, norm, contracted, deltas, dot = load_contracted(
                q, lse, kappa_c, grad_delta, row_dot, block, q_m, M, BM, D, BD
            )
            weights, scores = score_gradient(
                queries, tokens, values, gradients, norm, contracted, deltas, dot, valid, scale2,
                0, True, PRECISION,
            )  # fmt: skip
            if v is None:
                acc = tl.dot(weights, deltas, acc, input_precision=PRECISION)
            else:
                acc_v = tl.dot(weights, deltas, acc_v, input_precision=PRECISION)
            scaled = (queries * scale).to(queries.dtype)
            acc = tl.dot(scores, scaled, acc, input_precision=PRECISION)
        acc = tl.where(valid[:, None], acc, 0.0)
        store_rows(grad_w, start, o_n, acc, start + tl.arange(0, BN) < end, BN, D, BD)
        if v is not None:
            acc_v = tl.where(valid[:, None], acc_v, 0.0)
            store_rows(grad_v, start, o_n, acc_v, start + tl.arange(0, BN) < end, BN, D, BD)


@triton.jit
def spread_to_queries(
    w, v, q, grad, mask, lse, kappa_c, grad_delta, row_dot, grad_q,
    H, N, M, chunk, scale, scale2,
    w_b, w_h, w_n, v_b, v_h, v_n, q_b, q_h, q_m, g_b, g_h, g_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The splits' sums of s·dS w where M > BM. Grid (B·H, blocks of representatives, splits)."""
    announce(PDL)
    bh, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, h = bh // H, bh % H
    w = head_of(w, b, h, w_b, w_h)
    if grad is not None:
        grad = head_of(grad, b, h, g_b, g_h)
    if v is not None:
        v = head_of(v, b, h, v_b, v_h)
    q = head_of(q, b, h, q_b, q_h)
    row = bh.to(tl.int64) * M
    queries, norm, contracted, deltas, dot = load_contracted(
        q, lse + row, kappa_c + row * D, grad_delta + row * D, row_dot + row, block * BM, q_m, M, BM, D, BD
    )
    total = tl.zeros((BM, BD), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, N), BN):
        valid = real_tokens(mask, b, start, N, BN, True, HAS_MASK)
        tokens = load_rows(w, start, w_n, valid, BN, D, BD)
        values = tokens if v is None else load_rows(v, start, v_n, valid, BN, D, BD)
        gradients = None if grad is None else load_rows(grad, start, g_n, valid, BN, D, BD)
        _, scores = score_gradient(
            queries, tokens, values, gradients, norm, contracted, deltas, dot, valid, scale2,
            0, True, PRECISION,
        )  # fmt: skip
        total = tl.dot(tl.trans(scores), tokens, total, input_precision=PRECISION)
    place = (split.to(tl.int64) * tl.num_programs(0) + bh) * M
    valid = block * BM + tl.arange(0, BM) < M
    store_rows(grad_q + place * D, block * BM, D, total * scale, valid, BM, D, BD)
