"""Contract-and-broadcast of tokens that are spread over processes.

Extraction is a softmax over all tokens: each process runs it over its own, and the results are merged as
a split softmax is, by their largest log-sum-exp and two sums: m·(d + 2) numbers per head. Contraction is done
in every process, and the broadcast concerns each token alone. The backward sums U = A G over processes, m·d
numbers per head, from which all else follows (README.md of :mod:`cbsa.ops` derives it).

The first ``copies`` tokens of a process are copies of prefix tokens that another one counts: they read the
contractions, and are not gathered.
"""

import torch
from torch import Tensor

from cbsa._checks import check_choice, check_eps, check_mask
from cbsa.ops.api import CONTRACTIONS, check_tensors, in_one_dtype
from cbsa.ops.attention import attention
from cbsa.ops.custom import differentiate, empty_gradients, empty_results, token_major
from cbsa.ops.precision import accumulation_dtype, no_autocast
from cbsa.ops.sdpa import (
    backward_of_representatives,
    backward_of_tokens,
    broadcast,
    contract,
    extracted,
    hide_padding,
)
from cbsa.parallel.collectives import reduce
from cbsa.parallel.group import ContextGroup


def contract_broadcast(
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
) -> Tensor:
    """:func:`cbsa.ops.contract_broadcast` of tokens of which each process has some.

    Args:
        w: projected tokens of this process (B, H, N, d).
        reps: initial representatives Q (B, H, m, d), the same in every process.
        step_rep: η of each head (H,).
        step_out: κ of each head (H,).
        group: the processes.
        num_prefix_tokens: how many tokens at the start of w are the same in every process.
        mask: (B, N) boolean, True = a real token.
        contraction: ``"softmax"``, ``"exact"`` or ``"none"``.
        eps: quantisation precision ε, for ``contraction="exact"``.

    Returns:
        (B, H, N, d), the outputs of this process's tokens.
    """
    eps = check_shard(w, reps, step_rep, step_out, num_prefix_tokens, mask, contraction, eps)
    w, reps = in_one_dtype(w, reps)
    copies = num_prefix_tokens if group.rank > 0 else 0
    scale = w.shape[-1] ** -0.5
    out: Tensor = _forward(
        w, reps, step_rep, step_out, mask, scale, contraction, eps, copies, group.name, group.size
    )[0]
    return out


def check_shard(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    num_prefix_tokens: int,
    mask: Tensor | None,
    contraction: str,
    eps: float,
) -> float:
    """Check what the operator is given in this process; return ε as a number."""
    check_choice("contraction", contraction, CONTRACTIONS)
    check_tensors(w, reps, step_rep, step_out)
    check_mask(mask, w.shape[0], w.shape[2], w.device)
    if w.shape[2] <= num_prefix_tokens:
        raise ValueError(
            f"w has {w.shape[2]} tokens, of which {num_prefix_tokens} are prefix tokens: each process needs "
            "tokens of its own"
        )
    return check_eps(eps)


@torch.library.custom_op("cbsa::contract_broadcast_sharded", mutates_args=())
def _forward(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    contraction: str,
    eps: float,
    copies: int,
    name: str,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (B, H, N, d), D = Aw (B, H, m, d) and the log-sum-exp of A's rows (B, H, m)."""
    with no_autocast(w.device):
        w, bias = hide_padding(w, mask, elsewhere=True)
        delta, lse = extract(w, reps, mask, bias, scale, copies, name)
        c, _ = contract(extracted(reps, delta, step_rep), contraction, scale, eps)
        return broadcast(w, reps, c, lse, step_out, mask, scale), delta, lse


_forward.register_fake(empty_results)


def extract(
    w: Tensor, reps: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float, copies: int, name: str
) -> tuple[Tensor, Tensor]:
    """D = A w (B, H, m, d) and the log-sum-exp of A's rows (B, H, m), over the tokens of all processes.

    Padding of w is 0, and the bias shuts it out; see :func:`cbsa.ops.sdpa.hide_padding`.
    """
    tokens, bias = w[:, :, copies:], None if bias is None else bias[..., copies:]
    here, lse_here = attention(reps, tokens, tokens, scale, bias)
    delta, lse = _merge(here, of_real(lse_here, mask, copies), name)
    return delta.to(w.dtype).contiguous(), lse.contiguous()


def _merge(here: Tensor, lse_here: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Average and log-sum-exp over all tokens, of those over the tokens of each process, −∞ for no token.

    An element without a real token anywhere averages nothing: 0, with log-sum-exp 0.
    """
    wide = lse_here.dtype
    top = reduce(lse_here, "max", name)  # (B, H, m)
    top = top.masked_fill(top == -torch.inf, 0)
    share = (lse_here - top).exp().unsqueeze(-1)  # (B, H, m, 1)
    both = reduce(torch.cat([share * here.to(wide), share], -1), "sum", name)  # (B, H, m, d + 1)
    total = both[..., -1]
    total = total.where(total != 0, 1)
    return both[..., :-1] / total.unsqueeze(-1), top + total.log()


def of_real(lse: Tensor, mask: Tensor | None, copies: int = 0) -> Tensor:
    """The log-sum-exp (B, H, m) of the scores here, −∞ for elements of which only padding is counted here."""
    return lse if mask is None else lse.where(mask[:, copies:].any(-1)[:, None, None], -torch.inf)


@torch.library.custom_op("cbsa::contract_broadcast_sharded_backward", mutates_args=())
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
    copies: int,
    name: str,
    size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return this process's shares of the gradients with respect to w, reps, step_rep and step_out.

    What is computed alike in every process, the gradients of R and of the step sizes, each returns an equal
    part of: the sum over processes is the gradient.
    """
    wide = accumulation_dtype(w.dtype)
    with no_autocast(w.device):
        w, bias = hide_padding(w, mask, elsewhere=True)
        grad, _ = hide_padding(grad, mask, elsewhere=True)
        bias = None if bias is None else bias[..., copies:]
        tokens, g = w[:, :, copies:], grad[:, :, copies:]
        copied, g_copied = w[:, :, :copies].to(wide), grad[:, :, :copies].to(wide)
        q = reps.to(wide)
        # Columns of A for the copies, (B, H, m, copies).
        a = ((q * scale) @ copied.mT - lse.unsqueeze(-1)).exp()
        if mask is not None:
            a = a.masked_fill(~mask[:, None, None, :copies], 0)

        here, lse_here = attention(reps, tokens, g, scale, bias)
        share = (of_real(lse_here, mask, copies) - lse).exp().unsqueeze(-1)
        u = reduce(share * here.to(wide) + a @ g_copied, "sum", name)  # U = A G, (B, H, m, d)
        few = backward_of_representatives(u, reps, step_rep, step_out, delta, scale, contraction, eps)
        dq, dk, dv = backward_of_tokens(g, tokens, tokens, reps, u.to(w.dtype), delta, lse, few, scale, bias)
        ds = scale * a * (few.kappa_c @ g_copied.mT)  # the copies are read alone: no softmax over them

        grad_w = token_major(w)
        grad_w[:, :, :copies] = ds.mT @ q
        torch.add(dk, dv, out=grad_w[:, :, copies:])
        if mask is not None:
            grad_w.masked_fill_(~mask[:, None, :, None], 0)
        grad_reps = (dq + ds @ copied + few.r / size).to(reps.dtype).contiguous()
        steps = (few.step_rep / size).to(step_rep.dtype), (few.step_out / size).to(step_out.dtype)
        return grad_w, grad_reps, *steps


_backward.register_fake(empty_gradients)
differentiate(_forward, _backward)
