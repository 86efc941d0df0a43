"""CBSA* and CBSA∨, the operators of an adapted ViT: with queries, keys and values (figure vit-adapt)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import check_choice, check_eps, check_floating, check_mask, check_number
from cbsa.ops import adapted_sdpa, reference
from cbsa.ops.api import CONTRACTIONS, IMPLEMENTATIONS, check_tensors, choose_pytorch, implementation
from cbsa.ops.availability import triton_is_missing
from cbsa.ops.precision import autocast_dtype

ADAPTED_IMPLEMENTATIONS = IMPLEMENTATIONS
KV_BROADCASTS = ("transpose", "softmax")


def contract_broadcast_kv(
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    step_rep: Tensor | None = None,
    step_out: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    broadcast: str = "transpose",
    impl: str = "auto",
) -> Tensor:
    """CBSA*: contract and broadcast with the keys and values of a softmax attention, in O(N).

    With tokens as rows, per batch element and head (figure vit-adapt)::

        A = softmax_n(s·Q Kᵀ)    R = Q + η·A V       extraction
        C = softmax(s·R Rᵀ) R                        contraction
        O = κ·Aᵀ C                                   broadcast

    :func:`cbsa.ops.contract_broadcast` is the case K = V = w. With ``broadcast="softmax"``, which the paper
    does not have, tokens take up contractions by weights whose sum is 1, of the same scores:
    O = κ·softmax_r(s·K Qᵀ) C. The rows of Aᵀ have no common sum, and that of a token that no representative
    attends to is almost nothing.

    Args:
        k: keys (B, H, N, d).
        v: values (B, H, N, d).
        reps: initial representatives Q (B, H, m, d), pooled from the queries.
        step_rep: η of each head (H,), by default 1: a pretrained attention has no steps.
        step_out: κ of each head (H,), by default 1.
        mask: (B, N) boolean, True = a real token. Padding is neither gathered nor changed: its output is 0.
        scale: s, by default d^-½.
        contraction: ``"softmax"``, ``"exact"`` or ``"none"``; see :func:`cbsa.ops.contract_broadcast`.
        eps: quantisation precision ε, for ``contraction="exact"``.
        broadcast: ``"transpose"`` (Aᵀ, the paper's) or ``"softmax"``.
        impl: ``"reference"`` (plain PyTorch), ``"sdpa"`` (fused attention kernels; nothing N×m in memory),
            ``"triton"`` (kernels of our own for a GPU, for the paper's broadcast) or ``"auto"``: one of the
            first two, by size.

    Returns:
        (B, H, N, d) in the dtype of ``k`` (under autocast, in autocast's dtype).
    """
    check_choice("contraction", contraction, CONTRACTIONS)
    check_choice("broadcast", broadcast, KV_BROADCASTS)
    check_choice("impl", impl, ADAPTED_IMPLEMENTATIONS)
    if (broadcast, impl) == ("softmax", "triton"):
        raise ValueError(
            "impl='triton' has no broadcast='softmax'; use impl='sdpa', which stores nothing N×m"
        )
    eta, kappa = (_ones(k) if step is None else step for step in (step_rep, step_out))
    check_tensors(k, reps, eta, kappa, tokens="k")
    _check_like(k, v=v)
    check_mask(mask, k.shape[0], k.shape[2], k.device)
    eps = check_eps(eps)
    scale = k.shape[-1] ** -0.5 if scale is None else check_number("scale", scale)
    k, v, reps = _one_dtype(k=k, v=v, reps=reps)
    implementations: dict[str, Callable[..., Tensor]] = {
        "reference": reference.contract_broadcast_kv,
        "sdpa": adapted_sdpa.contract_broadcast_kv,
        "triton": _star_on_kernels,
    }
    if broadcast == "softmax":
        implementations = {
            "reference": reference.contract_broadcast_by_softmax,
            "sdpa": adapted_sdpa.contract_broadcast_by_softmax,
        }
    impl = implementation(impl, lambda: choose_pytorch(k, reps), k, v, reps, eta, kappa)
    return implementations[impl](k, v, reps, eta, kappa, mask, scale, contraction, eps)


def agent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reps: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    broadcast_scale: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """CBSA∨, Agent attention: representatives gather values, and every query reads from them, in O(N).

    With tokens as rows, per batch element and head (figure vit-adapt; Han et al., ECCV 2024)::

        D = softmax_n(s·Q Kᵀ) V          extraction
        O = softmax_r(t·X_q Qᵀ) D        broadcast, by a softmax of its own

    With Q = X_q, all queries, and t so large that every query finds itself, O is softmax attention.

    Args:
        q: queries X_q (B, H, N, d).
        k: keys (B, H, N, d).
        v: values (B, H, N, d).
        reps: representatives Q (B, H, m, d), pooled from the queries.
        mask: (B, N) boolean, True = a real token. Padding is neither gathered nor changed: its output is 0.
        scale: s, by default d^-½.
        broadcast_scale: t, by default s.
        impl: ``"reference"`` (plain PyTorch), ``"sdpa"`` (PyTorch's fused attention, twice; nothing N×m in
            memory), ``"triton"`` (kernels of our own for a GPU: scales above 0, not float64) or ``"auto"``:
            sdpa on a GPU, elsewhere one of the first two by size.

    Returns:
        (B, H, N, d) in the dtype of ``q`` (under autocast, in autocast's dtype).
    """
    check_choice("impl", impl, ADAPTED_IMPLEMENTATIONS)
    check_tensors(q, reps, _ones(q), _ones(q), tokens="q")
    _check_like(q, k=k, v=v)
    check_mask(mask, q.shape[0], q.shape[2], q.device)
    scale = q.shape[-1] ** -0.5 if scale is None else check_number("scale", scale)
    sharpness = scale if broadcast_scale is None else check_number("broadcast_scale", broadcast_scale)
    q, k, v, reps = _one_dtype(q=q, k=k, v=v, reps=reps)
    implementations: dict[str, Callable[..., Tensor]] = {
        "reference": _agent_reference,
        "sdpa": adapted_sdpa.agent_attention,
        "triton": _agent_on_kernels,
    }
    impl = implementation(impl, lambda: _choose_for_agent(q, reps), q, k, v, reps)
    return implementations[impl](q, k, v, reps, mask, scale, sharpness)


def _agent_reference(
    q: Tensor, k: Tensor, v: Tensor, reps: Tensor, mask: Tensor | None, scale: float, sharpness: float
) -> Tensor:
    if mask is not None:
        q, k, v = (x.masked_fill(~mask[:, None, :, None], 0) for x in (q, k, v))
    gathered = reference.gather(reference.extraction_weights(k, reps, scale, mask), v)  # D, (B, H, m, d)
    out = ((q * sharpness) @ reps.mT).softmax(-1) @ gathered  # (B, H, N, d)
    return out if mask is None else out.masked_fill(~mask[:, None, :, None], 0)


def _star_on_kernels(*arguments: Any) -> Tensor:
    try:
        from cbsa.ops import fused_kv
    except ImportError as error:
        raise triton_is_missing(error) from error
    return fused_kv.contract_broadcast_kv(*arguments)


def _agent_on_kernels(*arguments: Any) -> Tensor:
    try:
        from cbsa.ops import fused_agent
    except ImportError as error:
        raise triton_is_missing(error) from error
    return fused_agent.agent_attention(*arguments)


def _choose_for_agent(q: Tensor, reps: Tensor) -> str:
    """Pick the implementation of Agent attention for ``impl="auto"``."""
    return "sdpa" if q.device.type == "cuda" else choose_pytorch(q, reps)


def _ones(x: Any) -> Tensor:
    """One step of 1 per head of x (B, H, N, d); what is no such tensor is left to the checks."""
    return torch.ones(x.shape[1], device=x.device) if isinstance(x, Tensor) and x.dim() > 1 else torch.ones(1)


def _check_like(tokens: Tensor, **others: Tensor) -> None:
    """Check that the others have the shape and device of the tokens."""
    for name, other in others.items():
        check_floating(name, other)
        if other.shape != tokens.shape or other.device != tokens.device:
            raise ValueError(
                f"q, k and v must have one shape (B, H, N, d) and device: {name} has {tuple(other.shape)} on "
                f"{other.device}, expected {tuple(tokens.shape)} on {tokens.device}"
            )


def _one_dtype(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype under autocast; elsewhere they must have one dtype already."""
    first, *rest = tensors.values()
    if first.dtype != torch.float64 and (dtype := autocast_dtype(first.device)) is not None:
        return tuple(x.to(dtype) for x in tensors.values())
    if any(x.dtype != first.dtype for x in rest):
        found = ", ".join(f"{name} of {x.dtype}" for name, x in tensors.items())
        raise TypeError(f"all tensors must have one dtype, got {found}")
    return first, *rest
