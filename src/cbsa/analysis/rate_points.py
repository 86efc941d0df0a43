"""Tokens at three points of a block, as what their coding rates need: in PyTorch, or in kernels on a GPU."""

import contextlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.analysis.layers import Layer
from cbsa.ops.availability import kernels_run_on
from cbsa.ops.precision import accumulation_dtype, no_autocast, single_products_in_tf32, solve_dtype
from cbsa.ops.resolvent import half_logdet_of_shifted


class Points:
    """What enters a layer, what its attention leaves, and what leaves its block, for one batch of images.

    Nothing but Gram matrices of the heads is kept of the tokens, and determinants are taken of all points at
    once. A layer without feed-forward has two points, of which the last counts twice.

    Args:
        layer: the layer.
        w: tokens that enter it, within the heads, (B, H, N, p).
        eps: quantisation precision ε.
    """

    def __init__(self, layer: Layer, w: Tensor, eps: float) -> None:
        self.layer, self.eps = layer, eps
        batch, heads, n, p = w.shape
        side, kept = min(n, p), solve_dtype(w.device)
        points = 2 if layer.next_norm is None else 3
        self._grams = w.new_empty((points, batch, heads, 2, side, side), dtype=kept)
        self._factor, self._dtype = p / (n * eps**2), accumulation_dtype(w.dtype)
        self._count = 0
        self._add(w)

    def between(self, x: Tensor) -> None:
        """Look at tokens x (B, N, dim) that the attention leaves."""
        self._add(self.layer.heads(F.linear(self.layer.norm(x), *self.layer.value_map()))[-1])

    def after(self, x: Tensor, count: bool) -> tuple[Tensor, Tensor | None]:
        """Look at tokens x (B, N, dim) that leave the block.

        Returns:
            The coding rates at the three points, (3, B, H, 2), plain and of unit length; and how many numbers
            of x are not 0, if that is to be counted.
        """
        self.between(x)
        rates = half_logdet_of_shifted(self._grams, self._factor).to(self._dtype)
        return _three(rates), x.count_nonzero() if count else None

    def _add(self, w: Tensor) -> None:
        with no_autocast(w.device):
            x = w.to(solve_dtype(w.device))
            for place, tokens in enumerate((x, F.normalize(x, dim=-1))):
                side = tokens if w.shape[-2] <= w.shape[-1] else tokens.mT  # Sylvester, as in coding_rate
                self._grams[self._count, :, :, place] = side @ side.mT
        self._count += 1


class KernelPoints:
    """The same in kernels, with few launches: one norm for each point, then all products at once."""

    def __init__(self, layer: Layer, w: Tensor, eps: float) -> None:
        from cbsa.ops.fused_rates import gram_size, head_grams

        self.layer = layer
        batch, heads, n, p = w.shape
        side = gram_size(p)
        points = 2 if layer.next_norm is None else 3
        self._grams = w.new_empty((points, batch, heads, 2, side, side), dtype=torch.float32)
        self._factor = p / (n * eps**2)
        self._normed: Tensor | None = None  # (points − 1, B, N, dim)
        self._count = 0
        head_grams(w, self._grams[0])

    def between(self, x: Tensor, nonzero: Tensor | None = None) -> None:
        """Look at tokens x (B, N, dim) that the attention leaves, and count what is not 0 if asked to."""
        from cbsa.ops.fused_norm import layer_norm_into

        norm: nn.LayerNorm = self.layer.norm  # type: ignore[assignment]
        if self._normed is None:
            self._normed = x.new_empty((len(self._grams) - 1, *x.shape))
        layer_norm_into(self._normed[self._count], x, norm.weight, norm.bias, norm.eps, nonzero)
        self._count += 1

    def after(self, x: Tensor, count: bool) -> tuple[Tensor, Tensor | None]:
        """Look at tokens x (B, N, dim) that leave the block, and measure: see :meth:`Points.after`."""
        from cbsa.ops.fused_rates import half_log_determinants, head_grams

        nonzero = torch.zeros((), dtype=torch.int64, device=x.device) if count else None
        self.between(x, nonzero)
        assert self._normed is not None
        with single_products_in_tf32() if x.dtype == torch.float32 else contextlib.nullcontext():
            projected = F.linear(self._normed.flatten(0, 1), *self.layer.value_map())
        head_grams(self.layer.heads(projected)[-1], self._grams[1:].flatten(0, 1))
        return _three(half_log_determinants(self._grams, self._factor)), nonzero


def look(layer: Layer, w: Tensor, eps: float) -> "Points | KernelPoints":
    """Begin with tokens w (B, H, N, p) that enter a layer."""
    return (KernelPoints if _kernels_serve(layer, w, eps) else Points)(layer, w, eps)


def _kernels_serve(layer: Layer, w: Tensor, eps: float) -> bool:
    """Whether kernels measure coding rates of w."""
    if not kernels_run_on(w.device) or w.dtype == torch.float64:
        return False
    from cbsa.ops.fused_rates import LEAST_EPS, MAX_HEAD_DIM

    norm = layer.norm
    simple = isinstance(norm, nn.LayerNorm) and norm.bias is not None and len(norm.normalized_shape) == 1
    return simple and layer.head_dim <= MAX_HEAD_DIM and eps >= LEAST_EPS


def _three(rates: Tensor) -> Tensor:
    return rates if len(rates) == 3 else rates[[0, 1, 1]]
