"""How far each layer compresses its tokens: coding rates within the subspaces of the heads."""

import contextlib
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_positive_number
from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.layers import Layer
from cbsa.analysis.probing import probing
from cbsa.layers import ISTA
from cbsa.ops.availability import kernels_run_on
from cbsa.ops.precision import accumulation_dtype, no_autocast, single_products_in_tf32, solve_dtype
from cbsa.ops.resolvent import half_logdet_of_shifted

_NAMES = ("input", "attention", "feed_forward")  # the points of a block


@dataclass(frozen=True)
class CodingRates:
    """Coding rates R(U_kᵀ LN(Z)) in nats, by layer and head, and sparsity by layer; means over images.

    A layer's rates are all taken in its own subspaces, through its own norm, so that they compare; their sum
    over the heads is the compression term R_c of eq. MCR2. The normalised rates are those of the projected
    tokens scaled to unit length in each head: they depend on angles alone (the paper's normalised variant).
    """

    input: Tensor  # (layers, heads): of what enters the block
    attention: Tensor  # (layers, heads): after the attention and its residual
    feed_forward: Tensor  # (layers, heads): of what leaves the block
    normalized_input: Tensor  # (layers, heads)
    normalized_attention: Tensor  # (layers, heads)
    normalized_feed_forward: Tensor  # (layers, heads)
    sparsity: Tensor  # (layers,): share of exact zeros in ISTA's output, NaN for a block without ISTA
    eps: float  # quantisation precision ε

    def table(self) -> list[dict[str, float]]:
        """One row per layer and head, ready for a CSV file."""
        columns = [*_NAMES, *(f"normalized_{name}" for name in _NAMES)]
        layers, heads = self.input.shape
        return [
            {
                "layer": layer,
                "head": head,
                **{name: getattr(self, name)[layer, head].item() for name in columns},
                "sparsity": self.sparsity[layer].item(),
            }
            for layer in range(layers)
            for head in range(heads)
        ]


def coding_rates(model: nn.Module, images: Images, eps: float = 0.1) -> CodingRates:
    """Measure ½ logdet(I + p/(N ε²)·WᵀW) with W = U_kᵀ LN(Z) at three points of every block (eq. cr, MCR2).

    This is the paper's figure of the compression term, CLS included as in the authors' code. Attention with
    query, key and value has no single subspace per head: its values stand for W, in a ViT, adapted or not,
    as well. A layer without feed-forward, as decoders of segmenters have them, leaves what its attention
    does: both rates are the same.

    Args:
        model: any model that probes know (:class:`cbsa.analysis.Anatomy`); its mode and hooks are left as
            they were.
        images: (B, C, height, width), of any size, or an iterable of such batches, as a data loader yields
            them; they are moved to the model's device.
        eps: quantisation precision ε.

    Returns:
        Means over all images, whatever the batches, on the model's device. They are computed in float64; on a
        GPU with kernels, for ε of at least 0.05, from products of 11 and 16 bits: within about 1e-3 of that,
        or 2e-2 where the tokens of a head are within a thousandth of a line.
    """
    check_positive_number("eps", eps)
    taken: list[Tensor] = []  # of each layer, (3, B, H, 2): three points, plain and normalised
    zeros: list[Tensor] = []
    sums: dict[str, Tensor] = {}  # over images: of the rates (layers, 3, H, 2), of the sparsity (layers,)
    count = 0

    def before(points: _Points, projection: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if points.count == 0:  # learned representatives are projected next
            points.add(points.layer.heads(out)[-1])

    def between(points: _Points, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        points.project(args[0])

    def after(points: _Points, block: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        points.project(out)
        taken.append(points.rates())
        sparse = isinstance(getattr(block, "ff", None), ISTA)
        wide = solve_dtype(out.device)
        zeros.append(
            1 - out.count_nonzero().to(wide) / out.numel()
            if sparse
            else torch.full((), torch.nan, device=out.device, dtype=wide)
        )

    with probing(model) as (anatomy, stack):
        for layer in anatomy.layers:
            points = _Points(layer, eps)
            stack.enter_context(layer.projection.register_forward_hook(partial(before, points)))
            if layer.next_norm is not None:
                stack.enter_context(layer.next_norm.register_forward_pre_hook(partial(between, points)))
            stack.enter_context(layer.block.register_forward_hook(partial(after, points)))
        for batch in image_batches(images):
            anatomy.run(batch)
            means = {"rates": torch.stack(taken).mean(2), "sparsity": torch.stack(zeros)}
            dtype = means["rates"].dtype
            for name, mean in means.items():
                sums[name] = sums.get(name, 0) + mean.to(zeros[0].dtype) * len(batch)
            count += len(batch)
            taken.clear()
            zeros.clear()

    rates, sparsity = ((sums[name] / count).to(dtype) for name in ("rates", "sparsity"))
    plain, normalized = (dict(zip(_NAMES, kind.unbind(1), strict=True)) for kind in rates.unbind(-1))
    return CodingRates(
        **plain,
        **{f"normalized_{name}": values for name, values in normalized.items()},
        sparsity=sparsity,
        eps=eps,
    )


class _Points:
    """The tokens of one layer at the points where they are looked at, as Gram matrices of its heads.

    Nothing else is kept of them, and determinants are taken of all points at once: with one factorisation a
    layer, and one launch of a kernel on a GPU.

    Args:
        layer: the layer.
        eps: quantisation precision ε.
    """

    def __init__(self, layer: Layer, eps: float) -> None:
        self.layer, self.eps = layer, eps
        self.count = 0  # of points that were looked at
        self._grams = torch.empty(0)  # (points, B, H, 2, side, side): of the tokens, and at unit length
        self._factor = 0.0
        self._dtype = torch.float32  # of the rates
        self._quick = False  # whether kernels measure them

    def project(self, x: Tensor) -> None:
        """Look at tokens x (B, N, dim), through the layer's norm and in its subspaces."""
        with single_products_in_tf32() if self._quick else contextlib.nullcontext():
            projected = F.linear(self.layer.norm(x), *self.layer.value_map())
        self.add(self.layer.heads(projected)[-1])

    def add(self, w: Tensor) -> None:
        """Look at tokens w (B, H, N, p) within the heads."""
        if self.count == 0:
            self._begin(w)
        grams = self._grams[self.count]
        self.count += 1
        if self._quick:
            from cbsa.ops.fused_rates import head_grams

            head_grams(w, grams)
            return
        with no_autocast(w.device):
            x = w.to(solve_dtype(w.device))
            for place, tokens in enumerate((x, F.normalize(x, dim=-1))):
                side = tokens if w.shape[-2] <= w.shape[-1] else tokens.mT  # Sylvester, as in coding_rate
                grams[:, :, place] = side @ side.mT

    def _begin(self, w: Tensor) -> None:
        """Make room for the Gram matrices of all points."""
        batch, heads, n, p = w.shape
        self._quick = self._kernels_serve(w)
        side, kept = min(n, p), solve_dtype(w.device)
        if self._quick:
            from cbsa.ops.fused_rates import gram_size

            side, kept = gram_size(p), torch.float32
        points = 2 if self.layer.next_norm is None else 3
        self._grams = w.new_empty((points, batch, heads, 2, side, side), dtype=kept)
        self._factor, self._dtype = p / (n * self.eps**2), accumulation_dtype(w.dtype)

    def rates(self) -> Tensor:
        """Coding rates at the three points, (3, B, H, 2); a layer without feed-forward has the last twice."""
        grams, self._grams, self.count = self._grams, torch.empty(0), 0
        if self._quick:
            from cbsa.ops.fused_rates import half_log_determinants

            rates = half_log_determinants(grams, self._factor)
        else:
            rates = half_logdet_of_shifted(grams, self._factor).to(self._dtype)
        return rates if len(rates) == 3 else rates[[0, 1, 1]]

    def _kernels_serve(self, w: Tensor) -> bool:
        """Whether kernels measure coding rates of w."""
        if not kernels_run_on(w.device) or w.dtype == torch.float64:
            return False
        from cbsa.ops.fused_rates import LEAST_EPS, MAX_HEAD_DIM

        return self.layer.head_dim <= MAX_HEAD_DIM and self.eps >= LEAST_EPS
