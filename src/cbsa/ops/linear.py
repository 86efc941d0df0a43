"""Linear attention with a positive kernel (Katharopoulos et al., 2020)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_choice, check_floating, check_mask
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.sums import HERE, TokenSums

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: F.elu(x) + 1, "relu": F.relu}


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, kernel: str = "relu"
) -> Tensor:
    """φ(q) (Σ_n φ(k_n)ᵀ v_n) / (φ(q)·Σ_n φ(k_n)): keys and values are multiplied first, linear in N.

    Args:
        q: queries (B, H, N, d).
        k: keys (B, H, N, d).
        v: values (B, H, N, d).
        mask: (B, N) boolean, True = a real token. Padding keys are not seen; padding queries get a value.
        kernel: φ, ``"relu"``, or ``"elu"`` for ELU + 1. With ReLU, a query without a positive channel in
            common with any key gets 0.

    Returns:
        (B, H, N, d) in the dtype of ``v``.
    """
    check_choice("kernel", kernel, KERNELS)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_floating(name, x)
        if x.dim() != 4 or x.shape != v.shape:
            raise ValueError(
                f"q, k and v must have one shape (B, H, N, d): {name} has {tuple(x.shape)}, "
                f"v has {tuple(v.shape)}"
            )
    check_mask(mask, v.shape[0], v.shape[2], v.device)
    return mix(q, k, v, mask, kernel)


def mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kernel: str, sums: TokenSums = HERE) -> Tensor:
    """:func:`linear_attention` of tokens that may be spread over processes."""
    phi = KERNELS[kernel]
    # The factor cancels; it keeps sums over many tokens inside the range of float16.
    q, k = phi(q), phi(k) * sums.count(k.shape[-2]) ** -0.5
    if mask is not None:
        k = k.masked_fill(~mask[:, None, :, None], 0)
    wide, mine = accumulation_dtype(v.dtype), sums.counted(k)
    state = torch.cat([mine.mT @ sums.counted(v), mine.sum(-2).unsqueeze(-1)], -1)  # (B, H, d, d + 1)
    state = sums.total(state)
    # One product: compiled for a CPU by torch 2.15, one with a single column writes past the last token.
    mixed = (q @ state).to(wide)  # (B, H, N, d + 1)
    numerator, denominator = mixed[..., :-1], mixed[..., -1:]
    unseen = denominator < torch.finfo(v.dtype).tiny  # not where it is NaN
    return (numerator / denominator.masked_fill(unseen, 1)).masked_fill(unseen, 0).to(v.dtype)
