"""The steps of the operator on blocks that are on the chip; names are those of README.md.

Tokens w are keys and values in one. Where they have values of their own, these are v, and w is the keys;
elsewhere v and what belongs to it are None, of which compiled code has no trace.

Only the last block of tokens may be a part of one (EDGE): others do without masks unless there is padding.
"""

import triton
import triton.language as tl

from cbsa.ops.kernels.blocks import load_rows, real_tokens, store_rows


@triton.jit
def softmax_block(top, total, raw, scale2, valid, EDGE: tl.constexpr, HAS_MASK: tl.constexpr):
    """One block of an online softmax of ``scale2`` · raw (scale2 > 0).

    Returns the block's weights, the new maxima and sums, and the factor that shrinks what was summed before.
    """
    if EDGE:
        raw = tl.where(valid[None, :], raw, float("-inf"))
    new_top = tl.maximum(top, tl.max(raw, 1) * scale2)
    # With padding, a row may have seen nothing but it so far.
    safe = tl.where(new_top == float("-inf"), 0.0, new_top) if HAS_MASK else new_top
    weights = tl.exp2(raw * scale2 - safe[:, None])  # (BM, BN)
    shrink = tl.exp2(top - safe)
    return weights, new_top, total * shrink + tl.sum(weights, 1), shrink


@triton.jit
def log_sum(top, total):
    """Sums that may be divided by, and the log₂-sum-exp; 1 and 0 where all was padding."""
    some = total > 0
    total = tl.where(some, total, 1.0)
    return total, tl.where(some, top + tl.log2(total), 0.0)


@triton.jit
def attend(
    state, queries, keys, values, valid, scale2,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a block of an online attention to (row maxima, row sums, unnormalised output)."""
    top, total, acc = state
    raw = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)  # (rows, block)
    weights, top, total, shrink = softmax_block(top, total, raw, scale2, valid, EDGE, HAS_MASK)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return top, total, acc


@triton.jit
def nothing_seen(ROWS: tl.constexpr, BD: tl.constexpr):
    """The state of :func:`attend` before the first block."""
    return (
        tl.full((ROWS,), float("-inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS, BD), tl.float32),
    )


@triton.jit
def gather_block(
    state, queries, w, v, mask, b, start, N, scale2, w_n, v_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a block of tokens to (row maxima, row sums, unnormalised A w, or A v)."""
    valid = real_tokens(mask, b, start, N, BN, EDGE, HAS_MASK)
    tokens = load_rows(w, start, w_n, valid, BN, D, BD)  # (BN, BD)
    values = tokens if v is None else load_rows(v, start, v_n, valid, BN, D, BD)
    return attend(state, queries, tokens, values, valid, scale2, EDGE or HAS_MASK, HAS_MASK, PRECISION)


@triton.jit
def gather_online(
    queries, w, v, mask, b, first, last, N, scale2, w_n, v_n,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row maxima, row sums and unnormalised A w (A v) over the tokens from ``first`` to ``last``, online."""
    state = nothing_seen(BM, BD)
    full = first + (last - first) // BN * BN
    for start in range(first, full, BN):
        state = gather_block(
            state, queries, w, v, mask, b, start, N, scale2, w_n, v_n, D, BD, BN, False, HAS_MASK, PRECISION
        )
    if full < last:
        state = gather_block(
            state, queries, w, v, mask, b, full, N, scale2, w_n, v_n, D, BD, BN, True, HAS_MASK, PRECISION
        )
    return state


@triton.jit
def contract_block(extracted, M, scale2, DTYPE: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr):
    """C = B R and B = softmax(s·RRᵀ) where all M ≤ BM representatives R (BM, BD) are at hand."""
    rounded = extracted.to(DTYPE)
    scores = tl.dot(rounded, tl.trans(rounded), input_precision=PRECISION) * scale2
    scores = tl.where((tl.arange(0, BM) < M)[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    return tl.dot(weights.to(DTYPE), rounded, input_precision=PRECISION), weights


@triton.jit
def contract_block_gradient(
    extracted, weights, gathered, scale, DTYPE: tl.constexpr, PRECISION: tl.constexpr
):
    """dR / κ where all representatives are at hand: BᵀU + s·(dT + dTᵀ)R, dT = B∘(U Rᵀ − rowsum(B∘U Rᵀ))."""
    rounded, grads = extracted.to(DTYPE), gathered.to(DTYPE)
    grad_scores = weights * tl.dot(grads, tl.trans(rounded), input_precision=PRECISION)
    grad_scores = scale * (grad_scores - weights * tl.sum(grad_scores, 1)[:, None])
    both = (grad_scores + tl.trans(grad_scores)).to(DTYPE)
    result = tl.dot(tl.trans(weights.to(DTYPE)), grads, input_precision=PRECISION)
    return tl.dot(both, rounded, result, input_precision=PRECISION)


@triton.jit
def spread_values(queries, tokens, norm, contracted, scale2, PRECISION: tl.constexpr):
    """AᵀC of a block of tokens (BN, BD) and one of representatives (BM, BD)."""
    raw = tl.dot(tokens, tl.trans(queries), input_precision=PRECISION)  # (BN, BM)
    weights = tl.exp2(raw * scale2 - norm[None, :])
    return tl.dot(weights.to(tokens.dtype), contracted, input_precision=PRECISION)


@triton.jit
def broadcast_block(
    queries, norm, contracted, w, out, mask, b, start, end, N, scale2, w_n, o_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O = κ·AᵀC of a block of tokens, κ·C being ``contracted`` and all representatives at hand."""
    valid = real_tokens(mask, b, start, N, BN, EDGE, HAS_MASK)
    tokens = load_rows(w, start, w_n, valid, BN, D, BD)
    values = spread_values(queries, tokens, norm, contracted, scale2, PRECISION)
    if HAS_MASK:
        values = tl.where(valid[:, None], values, 0.0)
    store_rows(out, start, o_n, values, start + tl.arange(0, BN) < end, BN, D, BD)


@triton.jit
def broadcast_backwards(
    queries, norm, contracted, w, out, mask, b, first, end, N, scale2, w_n, o_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O of the tokens from ``end`` back to ``first``: the last ones were read last, and are in the cache."""
    full = first + (end - first) // BN * BN
    if full < end:
        broadcast_block(
            queries, norm, contracted, w, out, mask, b, full, end, N, scale2, w_n, o_n,
            D, BD, BN, True, HAS_MASK, PRECISION,
        )  # fmt: skip
    for back in range(BN, full - first + 1, BN):
        broadcast_block(
            queries, norm, contracted, w, out, mask, b, full - back, end, N, scale2, w_n, o_n,
            D, BD, BN, False, HAS_MASK, PRECISION,
        )  # fmt: skip


@triton.jit
def score_gradient(
    queries, tokens, values, gradients, norm, kappa_c, grad_delta, row_dot, valid, scale2,
    AXIS: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Aᵀ (BN, BM) and dSᵀ of a block of tokens and one of representatives, in the dtype of the tokens.

    ``gradients`` is None where A broadcasts nothing: dS = A∘(dD vᵀ − δ) then. With AXIS 0 the softmax is over
    tokens: ``norm`` and ``row_dot`` are (BM,), and ``valid``, (BN,), is looked at if EDGE. With AXIS 1 it is
    over representatives: the former are (BN,), the latter (BM,).
    """
    raw = tl.dot(tokens, tl.trans(queries), input_precision=PRECISION)
    if AXIS == 1:
        raw = tl.where(valid[None, :], raw, float("-inf"))
    weights = tl.exp2(raw * scale2 - tl.expand_dims(norm, AXIS))
    if gradients is None:
        inner = tl.dot(values, tl.trans(grad_delta), input_precision=PRECISION)
    else:
        inner = tl.dot(gradients, tl.trans(kappa_c), input_precision=PRECISION)
        inner = tl.dot(values, tl.trans(grad_delta), inner, input_precision=PRECISION)
    inner = weights * (inner - tl.expand_dims(row_dot, AXIS))
    if EDGE:
        inner = tl.where(valid[:, None], inner, 0.0)
    return weights.to(tokens.dtype), inner.to(tokens.dtype)


@triton.jit
def spread_block(
    total, queries, scaled, norm, kappa_c, deltas, row_dot, w, v, grad, grad_w, grad_v, mask, b, start, end,
    N, scale2, w_n, v_n, g_n, o_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, WITH_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw = AᵀdD + dSᵀ(s·Q) of a block of tokens, all representatives at hand; add dS w to ``total``.

    With v, the two terms are dv and dw. Without grad, what A broadcasts has no part in dS.
    """
    valid = real_tokens(mask, b, start, N, BN, EDGE, HAS_MASK)
    tokens = load_rows(w, start, w_n, valid, BN, D, BD)
    values = tokens if v is None else load_rows(v, start, v_n, valid, BN, D, BD)
    gradients = None if grad is None else load_rows(grad, start, g_n, valid, BN, D, BD)
    weights, scores = score_gradient(
        queries, tokens, values, gradients, norm, kappa_c, deltas, row_dot, valid, scale2,
        0, EDGE or HAS_MASK, PRECISION,
    )  # fmt: skip
    result = tl.dot(weights, deltas, input_precision=PRECISION)
    if v is None:
        result = tl.dot(scores, scaled, result, input_precision=PRECISION)
    else:
        if HAS_MASK:
            result = tl.where(valid[:, None], result, 0.0)
        store_rows(grad_v, start, o_n, result, start + tl.arange(0, BN) < end, BN, D, BD)
        result = tl.dot(scores, scaled, input_precision=PRECISION)
    if HAS_MASK:
        result = tl.where(valid[:, None], result, 0.0)
    store_rows(grad_w, start, o_n, result, start + tl.arange(0, BN) < end, BN, D, BD)
    if WITH_Q:
        total = tl.dot(tl.trans(scores), tokens, total, input_precision=PRECISION)
    return total


@triton.jit
def spread_backwards(
    total, queries, norm, kappa_c, deltas, row_dot, w, v, grad, grad_w, grad_v, mask, b, first, end, N,
    scale, scale2, w_n, v_n, g_n, o_n,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    HAS_MASK: tl.constexpr, WITH_Q: tl.constexpr, PEEL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw (and dv) of the tokens from ``end`` back to ``first``; returns ``total`` plus dS w if WITH_Q.

    Without PEEL all blocks are treated as the last one, which takes fewer registers.
    """
    scaled = (queries * scale).to(queries.dtype)
    full = first + (end - first if PEEL else end - first + BN - 1) // BN * BN
    if full < end:
        total = spread_block(
            total, queries, scaled, norm, kappa_c, deltas, row_dot, w, v, grad, grad_w, grad_v, mask, b, full,
            end, N, scale2, w_n, v_n, g_n, o_n, D, BD, BN, True, HAS_MASK, WITH_Q, PRECISION,
        )  # fmt: skip
    for back in range(BN, full - first + 1, BN):
        total = spread_block(
            total, queries, scaled, norm, kappa_c, deltas, row_dot, w, v, grad, grad_w, grad_v, mask, b,
            full - back, end, N, scale2, w_n, v_n, g_n, o_n,
            D, BD, BN, not PEEL, HAS_MASK, WITH_Q, PRECISION,
        )  # fmt: skip
    return total
