"""``impl="sdpa"``: contract-and-broadcast on PyTorch's fused attention kernels, with its own backward.

Every product with the m×N matrix A is an attention, so nothing of that size is ever stored: README.md beside
this file derives both directions. Saved for the backward: the inputs, D = Aw and the log-sum-exp of A's rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cbsa.ops.attention import attention, attention_backward, bias_dtype
from cbsa.ops.custom import differentiate, empty_gradients, empty_results, token_major, token_strides
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import exact_factor, per_head
from cbsa.ops.resolvent import resolvent, resolvent_backward

_TOKENS_AT_A_TIME = 1 << 14


def contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> Tensor:
    """Extract, contract, broadcast; see :func:`cbsa.ops.contract_broadcast`."""
    out: Tensor = _forward(w, reps, step_rep, step_out, mask, scale, contraction, eps)[0]
    return out


@torch.library.custom_op("cbsa::contract_broadcast_sdpa", mutates_args=())
def _forward(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (B, H, N, d), D = Aw (B, H, m, d) and the log-sum-exp of A's rows (B, H, m)."""
    return forward(w, w, reps, step_rep, step_out, mask, scale, contraction, eps)


def forward(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (B, H, N, d), D = Av (B, H, m, d) and log-sum-exp of A's rows (B, H, m); k and v may be one."""
    k, v, bias = hide_both(k, v, mask)
    delta, lse = attention(reps, k, v, scale, bias)  # D, (B, H, m, d)
    c, _ = contract(extracted(reps, delta, step_rep), contraction, scale, eps)
    out = broadcast(k, reps, c, lse, step_out, mask, scale)
    return out, delta.to(k.dtype).contiguous(), lse.contiguous()


def broadcast(
    k: Tensor,
    reps: Tensor,
    c: Tensor,
    lse: Tensor,
    step_out: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """κ·AᵀC (B, H, N, d) for tokens k (B, H, N, d), contractions c (B, H, m, d), lse of A's rows (B, H, m).

    Without ``step_out``, κ is 1.

    (AᵀC)_n = Σ_r exp(s·k_n·Q_r − lse_r) C_r is an attention of the tokens over the representatives with bias
    −lse, times its own normaliser exp(lse'_n) ≤ m. What rounding the bias loses where the kernel wants it in
    k's dtype, a factor on the values gives back: near 1, unless scores reach tens of thousands.
    """
    wide = accumulation_dtype(k.dtype)
    shift = lse.to(bias_dtype(k))
    values = (c * (shift - lse).exp().unsqueeze(-1)).to(k.dtype)
    mixed, total = attention(k, reps, values, scale, -shift.unsqueeze(-2))
    gain = total.to(wide).exp().unsqueeze(-1)  # (B, H, N, 1)
    if step_out is not None:
        gain = gain * per_head(step_out, wide)
    if mask is not None:
        gain = gain.masked_fill(~mask[:, None, :, None], 0)
    return _scaled(mixed, gain, token_major(k) if mixed.stride() != token_strides(k) else mixed)


def _scaled(mixed: Tensor, gain: Tensor, out: Tensor) -> Tensor:
    """gain·mixed (B, H, N, d), written to ``out``, which may be ``mixed`` itself.

    A CPU multiplies different dtypes by way of wide copies: those of some tokens at a time.
    """
    n = mixed.shape[2]
    step = _TOKENS_AT_A_TIME if mixed.device.type == "cpu" and mixed.dtype != gain.dtype else n
    for start in range(0, n, step):
        here = slice(start, start + step)
        torch.mul(mixed[:, :, here], gain[:, :, here], out=out[:, :, here])
    return out


_forward.register_fake(empty_results)


@torch.library.custom_op("cbsa::contract_broadcast_sdpa_backward", mutates_args=())
def _backward(
    grad: Tensor,
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the output with respect to w, reps, step_rep and step_out."""
    grad_k, grad_v, grad_reps, grad_step_rep, grad_step_out = backward(
        grad, w, w, reps, step_rep, step_out, mask, delta, lse, scale, contraction, eps
    )
    return write_gradient(w, mask, grad_k, grad_v), grad_reps, grad_step_rep, grad_step_out


def backward(
    grad: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    contraction: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of :func:`forward`'s output with respect to k, v, reps, step_rep and step_out.

    Those of k and v are for :func:`write_gradient`: as the kernels left them, padding included.
    """
    k, v, bias = hide_both(k, v, mask)
    grad, _ = hide_padding(grad, mask)
    u, _ = attention(reps, k, grad, scale, bias)  # U = A G, (B, H, m, d)
    few = backward_of_representatives(u, reps, step_rep, step_out, delta, scale, contraction, eps)
    dq, dk, dv = backward_of_tokens(grad, k, v, reps, u, delta, lse, few, scale, bias)
    grad_reps = (dq + few.r).to(k.dtype).contiguous()
    return dk, dv, grad_reps, few.step_rep.to(step_rep.dtype), few.step_out.to(step_out.dtype)


class FewGradients(NamedTuple):
    """The backward of what happens among the m representatives, in float32 or wider.

    Attributes:
        r: dR (B, H, m, d).
        delta: dD = η·dR.
        kappa_c: κ·C.
        step_rep: dη (H,).
        step_out: dκ (H,).
    """

    r: Tensor
    delta: Tensor
    kappa_c: Tensor
    step_rep: Tensor
    step_out: Tensor


def backward_of_representatives(
    u: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    delta: Tensor,
    scale: float,
    contraction: str,
    eps: float,
) -> FewGradients:
    """Gradients from U = A G (B, H, m, d) down to R, with D = A v (B, H, m, d) of the forward."""
    wide = accumulation_dtype(reps.dtype)
    r = extracted(reps, delta, step_rep)
    c, lse = contract(r, contraction, scale, eps)
    kappa = per_head(step_out, wide)
    grad_r = _contract_backward(kappa * u, r, c, lse, contraction, scale, eps)
    sums = (0, 2, 3)
    return FewGradients(
        grad_r,
        per_head(step_rep, wide) * grad_r,
        kappa * c,
        (grad_r * delta).sum(sums),
        (u * c).sum(sums),
    )


def backward_of_tokens(
    grad: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    u: Tensor,
    delta: Tensor,
    lse: Tensor,
    few: FewGradients,
    scale: float,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the scores' queries (the representatives), of k and of v.

    dS = A∘(κ C Gᵀ + dD vᵀ − δ) splits into the score gradients of two attentions over the same A: one with
    values G and output gradient κC, the other with values v and output gradient dD.
    """
    wide = accumulation_dtype(k.dtype)
    dq_g, dk_g, _ = attention_backward(few.kappa_c.to(k.dtype), reps, k, grad, u, lse, scale, bias)
    dq_v, dk_v, dv_v = attention_backward(few.delta.to(k.dtype), reps, k, v, delta, lse, scale, bias)
    return dq_g.to(wide) + dq_v, dk_g.to(wide) + dk_v, dv_v


def write_gradient(tokens: Tensor, mask: Tensor | None, part: Tensor, other: Tensor | None = None) -> Tensor:
    """Gradient of tokens (B, H, N, d) in their dtype, the sum of its parts, 0 for padding."""
    out = token_major(tokens)
    out = out.copy_(part) if other is None else torch.add(part, other, out=out)
    return out if mask is None else out.masked_fill_(~mask[:, None, :, None], 0)


_backward.register_fake(empty_gradients)
differentiate(_forward, _backward)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_sdpa)
def _flops(w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Count what the fused kernels do: scores are computed twice, 4·N·m·d where the reference has 3·N·m·d."""
    *_, contraction, _ = others
    return forward_flops(w, reps, contraction)


@register_flop_formula(torch.ops.cbsa.contract_broadcast_sdpa_backward)
def _backward_flops(grad: Any, w: Any, reps: Any, *others: Any, **kwargs: Any) -> int:
    """Count one attention (2 products) and two of its backwards (5 each) over N·m, and the contraction's."""
    *_, contraction, _ = others
    return backward_flops(w, reps, contraction)


def forward_flops(tokens: tuple[int, ...], reps: tuple[int, ...], contraction: str) -> int:
    """Twice the multiply-accumulates of :func:`forward` for tokens (B, H, N, d) and reps (B, H, m, d)."""
    batch, heads, n, d = tokens
    m = reps[-2]
    contract = {"softmax": 2 * m * m * d, "exact": m * d * min(m, d), "none": 0}[contraction]
    return 2 * batch * heads * (4 * n * m * d + contract)


def backward_flops(tokens: tuple[int, ...], reps: tuple[int, ...], contraction: str) -> int:
    """Twice the multiply-accumulates of :func:`backward`."""
    batch, heads, n, d = tokens
    m = reps[-2]
    contract = {"softmax": 7 * m * m * d, "exact": 5 * m * d * min(m, d), "none": 0}[contraction]
    return 2 * batch * heads * (12 * n * m * d + contract)


def hide_both(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """:func:`hide_padding` of k and v, which may be one tensor."""
    hidden, bias = hide_padding(k, mask)
    return hidden, hidden if v is k else hide_padding(v, mask)[0], bias


def hide_padding(x: Tensor, mask: Tensor | None, elsewhere: bool = False) -> tuple[Tensor, Tensor | None]:
    """Zero the padding tokens of x (B, H, N, d), and return the bias (B, 1, 1, N) that shuts them out.

    The bias is finite, as whole blocks of a kernel may see padding alone, and so low that its exponential
    is 0 beside any real token. An element that is all padding gets none, and averages zeros, unless its real
    tokens are ``elsewhere``.
    """
    if mask is None:
        return x, None
    bias = torch.zeros(mask.shape, dtype=x.dtype, device=x.device)
    hidden = ~mask if elsewhere else ~mask & mask.any(-1, keepdim=True)
    bias.masked_fill_(hidden, max(torch.finfo(x.dtype).min, -1e30))
    return x.masked_fill(~mask[:, None, :, None], 0), bias[:, None, None, :]


def extracted(reps: Tensor, delta: Tensor, step_rep: Tensor) -> Tensor:
    """R = Q + η·D in float32 or wider: the contraction costs little, and runs in that precision."""
    wide = accumulation_dtype(reps.dtype)
    return torch.addcmul(reps.to(wide), per_head(step_rep, wide), delta.to(wide))


def contract(r: Tensor, contraction: str, scale: float, eps: float) -> tuple[Tensor, Tensor | None]:
    """C of the contracted representatives, and the log-sum-exp where a softmax made it."""
    if contraction == "softmax":
        return attention(r, r, r, scale)
    if contraction == "exact":
        return resolvent(r, exact_factor(r, eps)), None
    return r, None


def _contract_backward(
    grad: Tensor, r: Tensor, c: Tensor, lse: Tensor | None, contraction: str, scale: float, eps: float
) -> Tensor:
    if lse is not None:
        dq, dk, dv = attention_backward(grad, r, r, r, c, lse, scale)
        return dq + dk + dv
    if contraction == "exact":
        return resolvent_backward(grad, r, exact_factor(r, eps))
    return grad
