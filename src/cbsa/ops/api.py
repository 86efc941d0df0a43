"""The public operator: what it means, the checks of its input, and the choice of an implementation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import (
    check_choice,
    check_eps,
    check_floating,
    check_mask,
    check_number,
)
from cbsa._tracing import is_exporting, is_transformed
from cbsa.ops import reference, sdpa
from cbsa.ops.availability import kernels_run_on, triton_is_missing
from cbsa.ops.pooling import pool_heads
from cbsa.ops.precision import autocast_dtype

CONTRACTIONS = ("softmax", "exact", "none")

_Implementation = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, float, str, float], Tensor]


def _triton(*arguments: Any) -> Tensor:
    """The Triton kernels, imported when they are first asked for: not every installation has Triton."""
    try:
        from cbsa.ops import fused
    except ImportError as error:
        raise triton_is_missing(error) from error
    return fused.contract_broadcast(*arguments)


_IMPLEMENTATIONS: dict[str, _Implementation] = {
    "reference": reference.contract_broadcast,
    "sdpa": sdpa.contract_broadcast,
    "triton": _triton,
}
IMPLEMENTATIONS = ("auto", *_IMPLEMENTATIONS)

# Bytes of A (B×H×m×N) up to which impl="auto" takes plain PyTorch, where it does not take the kernels: in 32
# and 64 bits on the CPU, where the fused form becomes the faster one; elsewhere plain PyTorch trained faster
# than that at all sizes measured (96 MiB at most; README.md has the table): the limit is there for memory.
_REFERENCE_BYTES_CPU, _REFERENCE_BYTES_CPU_HALF, _REFERENCE_BYTES_GPU = 32 << 20, 256 << 20, 1 << 30


def contract_broadcast(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    impl: str = "auto",
) -> Tensor:
    """Contract-and-Broadcast Self-Attention within each head's subspace, in O(N).

    With tokens as rows, per batch element and head::

        A = softmax_n(s·Q wᵀ)    R = Q + η·A w       extraction    (eq. cross-attn)
        C = softmax(s·R Rᵀ) R                        contraction   (eq. CBSA; see ``contraction``)
        O = κ·Aᵀ C                                   broadcast

    Args:
        w: projected tokens (B, H, N, d); d is the dimension p of the subspace.
        reps: initial representatives Q (B, H, m, d), e.g. pooled from ``w``. Detach them for the
            stop-gradient of the paper's equation.
        step_rep: η of each head (H,).
        step_out: κ of each head (H,). Signs are free: the paper's descent has −κ.
        mask: (B, N) boolean, True = a real token. Padding is neither gathered nor changed: its output is 0.
        scale: s, by default d^-½.
        contraction: ``"softmax"``, ``"exact"`` for C = (I + d/(m ε²)·RRᵀ)⁻¹R (eq. CBSA-ori), or ``"none"``
            for C = R (Agent attention).
        eps: quantisation precision ε of the coding rate, for ``contraction="exact"``.
        impl: ``"reference"`` (plain PyTorch; differentiable twice and forward, ``torch.func`` transforms),
            ``"sdpa"`` (PyTorch's fused attention kernels; nothing N×m in memory), ``"triton"`` (kernels of
            our own for a GPU: softmax and no contraction, not float64), or ``"auto"``: the kernels on a GPU
            where they can, unless the environment has CBSA_KERNELS=0 when cbsa is imported, else one of the
            others by size. The function is the same; rounding differs, in float32 visibly so where scores
            reach hundreds (README.md).

    Returns:
        (B, H, N, d) in the dtype of ``w`` (under autocast, in autocast's dtype).
    """
    check_choice("contraction", contraction, CONTRACTIONS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    check_tensors(w, reps, step_rep, step_out)
    check_mask(mask, w.shape[0], w.shape[2], w.device)
    eps = check_eps(eps)
    scale = w.shape[-1] ** -0.5 if scale is None else check_number("scale", scale)

    w, reps = in_one_dtype(w, reps)
    impl = implementation(impl, lambda: choose(w, reps, scale, contraction), w, reps, step_rep, step_out)
    return _IMPLEMENTATIONS[impl](w, reps, step_rep, step_out, mask, scale, contraction, eps)


def pooled_contract_broadcast(
    w: Tensor,
    grid: Sequence[int],
    size: Sequence[int],
    step_rep: Tensor,
    step_out: Tensor,
    *,
    first: int = 0,
    mask: Tensor | None = None,
    contraction: str = "softmax",
    eps: float = 0.1,
    impl: str = "auto",
) -> Tensor:
    """:func:`contract_broadcast` with representatives that are averages of the tokens, gradients included.

    Args:
        w: projected tokens (B, H, N, d).
        grid: layout of the tokens that are pooled.
        size: layout of the representatives; see :func:`pool_tokens`.
        step_rep: η of each head (H,).
        step_out: κ of each head (H,).
        first: index of the first token that is pooled.
        mask, contraction, eps, impl: see :func:`contract_broadcast`.
    """
    scale = w.shape[-1] ** -0.5
    if mask is None and impl in ("auto", "triton") and _kernels_pool(w, grid, size, scale, contraction, impl):
        from cbsa.ops import fused_pooled

        if (dtype := autocast_dtype(w.device)) is not None:
            w = w.to(dtype)
        return fused_pooled.pooled_contract_broadcast(
            w, step_rep, step_out, grid, size, first, scale, contraction
        )
    reps = pool_heads(w, grid, size, first, mask)
    return contract_broadcast(
        w, reps, step_rep, step_out, mask=mask, contraction=contraction, eps=eps, impl=impl
    )


def _kernels_pool(
    w: Tensor, grid: Sequence[int], size: Sequence[int], scale: float, contraction: str, impl: str
) -> bool:
    """Whether pooling and operator run as one operator on our kernels: on a GPU, if the latter would."""
    if len(grid) > 2 or is_exporting() or is_transformed(w) or not kernels_run_on(w.device):
        return False
    wide = w.dtype not in (torch.bfloat16, torch.float16) and autocast_dtype(w.device) is None
    if w.dtype == torch.float64 or (impl == "auto" and wide):
        return False
    from cbsa.ops import fused

    return fused.why_not(w, scale, contraction) is None


def implementation(impl: str, best: Callable[[], str], *inputs: Tensor) -> str:
    """``impl`` itself, or what ``"auto"`` stands for: the ``best`` where nothing demands the reference."""
    transformed = is_transformed(*inputs)
    if impl in ("sdpa", "triton") and transformed:
        raise ValueError(
            f"impl={impl!r} supports neither forward-mode differentiation nor torch.func transforms; "
            "use impl='reference' for them"
        )
    if impl == "auto":
        return "reference" if transformed or is_exporting() else best()
    return impl


def choose(w: Tensor, reps: Tensor, scale: float, contraction: str) -> str:
    """Pick the implementation for ``impl="auto"`` (README.md has the measurements)."""
    plain = choose_pytorch(w, reps)
    if kernels_run_on(w.device) and (w.element_size() < 4 or plain == "sdpa"):
        from cbsa.ops import fused

        if fused.why_not(w, scale, contraction) is None:
            return "triton"
    return plain


def choose_pytorch(w: Tensor, reps: Tensor) -> str:
    """Pick between ``"reference"`` and ``"sdpa"`` by the bytes of A (B, H, m, N)."""
    limit = _REFERENCE_BYTES_GPU
    if w.device.type == "cpu":
        limit = _REFERENCE_BYTES_CPU_HALF if w.element_size() < 4 else _REFERENCE_BYTES_CPU
    batch, heads, n, _ = w.shape
    size = batch * heads * n * reps.shape[-2] * w.element_size()
    return "reference" if size <= limit else "sdpa"


def in_one_dtype(w: Tensor, reps: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and representatives in autocast's dtype, under it; otherwise they must have one."""
    if w.dtype != torch.float64 and (dtype := autocast_dtype(w.device)) is not None:
        return w.to(dtype), reps.to(dtype)
    if w.dtype != reps.dtype:
        raise TypeError(f"w and reps must have one dtype, got {w.dtype} and {reps.dtype}")
    return w, reps


def check_tensors(w: Tensor, reps: Tensor, step_rep: Tensor, step_out: Tensor, tokens: str = "w") -> None:
    """Check shapes, dtypes and devices of the operator's tensors; ``tokens`` is what errors call w."""
    for name, tensor in {tokens: w, "reps": reps, "step_rep": step_rep, "step_out": step_out}.items():
        check_floating(name, tensor)
        if tensor.device != w.device:
            raise ValueError(f"{name} is on {tensor.device}, but {tokens} is on {w.device}")
    if w.dim() != 4 or min(w.shape[1:]) < 1:
        raise ValueError(f"{tokens} must have shape (B, H, N, d) with H, N, d >= 1, got {tuple(w.shape)}")
    batch, heads, _, d = w.shape
    if reps.dim() != 4 or (reps.shape[0], reps.shape[1], reps.shape[3]) != (batch, heads, d):
        raise ValueError(
            f"reps must have shape (B, H, m, d) = ({batch}, {heads}, m, {d}), got {tuple(reps.shape)}"
        )
    if reps.shape[2] < 1:
        raise ValueError(f"reps must hold at least one representative (m >= 1), got {tuple(reps.shape)}")
    for name, step in (("step_rep", step_rep), ("step_out", step_out)):
        if step.shape != (heads,):
            raise ValueError(
                f"{name} must have shape (H,) = ({heads},), one step per head, got {tuple(step.shape)}"
            )
        if _can_look_at(step) and not bool(step.isfinite().all()):
            raise ValueError(f"{name} must be finite, got {step.tolist()}")


def _can_look_at(x: Tensor) -> bool:
    """Tell whether reading values is free: never on a GPU (it would wait for it), nor while tracing."""
    return (
        x.device.type == "cpu"
        and type(x) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )
