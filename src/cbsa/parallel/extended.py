"""Contract-and-broadcast with the options that the paper does not have, of tokens spread over processes.

Each extraction is a softmax over all tokens, merged as that of :mod:`cbsa.parallel.contract_broadcast` is.
What tokens take up concerns each of them alone, by whichever weights: a process broadcasts as one device
does. So the parts of :mod:`cbsa.ops.extended` serve, with another extraction, and nothing of size N×m is
stored. What lies between them is done alike in every process.

Gradients are summed where the extraction was: m·d numbers per head, and m more for a broadcast that reads the
log-sum-exp.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import check_choice, check_int
from cbsa.ops import extended_sdpa
from cbsa.ops.api import in_one_dtype
from cbsa.ops.attention import attention, attention_backward
from cbsa.ops.custom import (
    differentiate,
    differentiate_all,
    empty_broadcast,
    empty_broadcast_gradients,
    empty_extraction,
    empty_extraction_gradients,
    token_major,
)
from cbsa.ops.extended import BROADCASTS, REP_NORMS, Parts, by_parts, refine
from cbsa.ops.precision import no_autocast
from cbsa.ops.sdpa import broadcast as broadcast_here
from cbsa.ops.sdpa import hide_padding, write_gradient
from cbsa.parallel.collectives import reduce
from cbsa.parallel.contract_broadcast import check_shard, contract_broadcast, extract, of_real
from cbsa.parallel.group import ContextGroup


def extended_contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    *,
    group: ContextGroup,
    num_prefix_tokens: int = 0,
    mask: Tensor | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    iterations: int = 1,
    rep_norm: str = "none",
    broadcast: str = "transpose",
) -> Tensor:
    """:func:`cbsa.ops.extended.extended_contract_broadcast` of tokens of which each process has some.

    Args:
        w: projected tokens of this process (B, H, N, d).
        reps: initial representatives (B, H, m, d), the same in every process.
        step_rep: η of each head (H,).
        step_out: κ of each head (H,).
        group: the processes.
        num_prefix_tokens: how many tokens at the start of w are the same in every process.
        mask: (B, N) boolean, True = a real token.
        contraction: ``"softmax"``, ``"exact"`` or ``"none"``.
        eps: quantisation precision ε, for ``contraction="exact"``.
        iterations: how often representatives gather from the tokens.
        rep_norm: norm of the representatives before contraction.
        broadcast: by which weights tokens take up contracted representatives.

    Returns:
        (B, H, N, d), the outputs of this process's tokens.
    """
    check_choice("rep_norm", rep_norm, REP_NORMS)
    check_choice("broadcast", broadcast, BROADCASTS)
    check_int("iterations", iterations)
    eps = check_shard(w, reps, step_rep, step_out, num_prefix_tokens, mask, contraction, eps)
    w, reps = in_one_dtype(w, reps)
    parts = _parts(group, num_prefix_tokens if group.rank > 0 else 0)
    with no_autocast(w.device):
        reps = refine(w, reps, step_rep, iterations - 1, mask, parts)
        if (rep_norm, broadcast) != ("none", "transpose"):
            return by_parts(w, reps, step_rep, step_out, mask, parts, contraction, eps, rep_norm, broadcast)
        return contract_broadcast(
            w,
            reps,
            step_rep,
            step_out,
            group=group,
            num_prefix_tokens=num_prefix_tokens,
            mask=mask,
            contraction=contraction,
            eps=eps,
        )


def _parts(group: ContextGroup, copies: int) -> Parts:
    """Extraction over all processes, and broadcasts within this one."""
    where: dict[str, Any] = {"copies": copies, "name": group.name, "size": group.size}
    broadcasts = (_broadcast, extended_sdpa.broadcast_per_token, extended_sdpa.broadcast_by_softmax)
    return Parts(
        partial(_gather, **where), partial(_extract, **where), dict(zip(BROADCASTS, broadcasts, strict=True))
    )


def _gather(w: Tensor, reps: Tensor, mask: Tensor | None, scale: float, **where: Any) -> Tensor:
    """D = A w (B, H, m, d) alone; without a gradient of the log-sum-exp, none is sent."""
    delta: Tensor = _extract(w, reps, mask, scale, **where)[0]
    return delta


@torch.library.custom_op("cbsa::extract_sharded", mutates_args=())
def _extract(
    w: Tensor, reps: Tensor, mask: Tensor | None, scale: float, copies: int, name: str, size: int
) -> tuple[Tensor, Tensor]:
    """Return D (B, H, m, d) and the log-sum-exp of A's rows (B, H, m), over the tokens of all processes."""
    w, bias = hide_padding(w, mask, elsewhere=True)
    return extract(w, reps, mask, bias, scale, copies, name)


_extract.register_fake(empty_extraction)


@torch.library.custom_op("cbsa::extract_sharded_backward", mutates_args=())
def _extract_backward(
    grad: Tensor | None,
    grad_lse: Tensor | None,
    w: Tensor,
    reps: Tensor,
    mask: Tensor | None,
    delta: Tensor,
    lse: Tensor,
    scale: float,
    copies: int,
    name: str,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Return this process's shares of the gradients with respect to w and reps."""
    sums = (torch.zeros_like(delta) if grad is None else grad).to(lse.dtype)
    if grad_lse is not None:
        sums = torch.cat([sums, grad_lse.unsqueeze(-1)], -1)
    sums = reduce(sums, "sum", name)  # (B, H, m, d), or d + 1
    d = delta.shape[-1]
    hidden, bias = hide_padding(w, mask, elsewhere=True)
    dq, dk, dv = extended_sdpa.backward_of_extraction(
        sums[..., :d].to(w.dtype),
        None if grad_lse is None else sums[..., d],
        hidden[:, :, copies:],
        reps,
        None if mask is None else mask[:, copies:],
        None if bias is None else bias[..., copies:],
        delta,
        lse,
        scale,
        1 / size,
    )
    grad_w = token_major(w)
    grad_w[:, :, :copies] = 0
    torch.add(dk, dv, out=grad_w[:, :, copies:])
    if mask is not None:
        grad_w.masked_fill_(~mask[:, None, :, None], 0)
    return grad_w, dq.to(reps.dtype).contiguous()


_extract_backward.register_fake(empty_extraction_gradients)
differentiate_all(_extract, _extract_backward)


@torch.library.custom_op("cbsa::broadcast_sharded", mutates_args=())
def _broadcast(w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return AᵀC = exp(s·w Qᵀ − lse) C (B, H, N, d) of this process's tokens.

    One device puts the gradient of the log-sum-exp into those of w and reps, which takes U = A G of all
    tokens. Here it is that of an input: the extraction sums it over processes, with those of C.
    """
    return broadcast_here(hide_padding(w, mask)[0], reps, c, lse, None, mask, scale)


_broadcast.register_fake(empty_broadcast)


@torch.library.custom_op("cbsa::broadcast_sharded_backward", mutates_args=())
def _broadcast_backward(
    grad: Tensor,
    w: Tensor,
    reps: Tensor,
    c: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to w, reps, c and lse: dS = A∘C Gᵀ, dlse = −C·U, dC = U = A G."""
    tokens, bias = hide_padding(w, mask, elsewhere=True)
    grad, _ = hide_padding(grad, mask)
    here, lse_here = attention(reps, tokens, grad, scale, bias)
    u = here * (of_real(lse_here, mask) - lse).exp().unsqueeze(-1)  # float32 or wider
    nothing = torch.zeros_like(here)  # in place of A G, whose product with C a softmax would subtract
    dq, dk, _ = attention_backward(c.to(w.dtype), reps, tokens, grad, nothing, lse, scale, bias)
    dlse = -(c * u).sum(-1)
    return write_gradient(w, mask, dk), dq.contiguous(), u.to(c.dtype).contiguous(), dlse.to(lse.dtype)


@_broadcast_backward.register_fake
def _(
    grad: Tensor, w: Tensor, reps: Tensor, c: Tensor, lse: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *empty_broadcast_gradients(grad, w, reps, c), lse.new_empty(lse.shape)


differentiate(_broadcast, _broadcast_backward)
