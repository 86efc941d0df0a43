"""How far each layer compresses its tokens: coding rates within the subspaces of the heads."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from cbsa._checks import check_eps
from cbsa.analysis.batches import Images, image_batches
from cbsa.analysis.layers import Layer
from cbsa.analysis.probing import probing
from cbsa.analysis.rate_points import KernelPoints, Points, look
from cbsa.layers import ISTA
from cbsa.ops.precision import solve_dtype

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
    check_eps(eps)
    points: dict[int, Points | KernelPoints] = {}  # of the layers that the batch is within
    taken: list[Tensor] = []  # of each layer, (3, B, H, 2): three points, plain and normalised
    nonzero: list[tuple[Tensor | None, int]] = []  # of each layer: how many numbers, of how many
    sums: dict[str, Tensor] = {}  # over images: of the rates (layers, 3, H, 2), of the sparsity (layers,)
    count = 0

    def before(
        index: int, layer: Layer, projection: nn.Module, args: tuple[Tensor, ...], out: Tensor
    ) -> None:
        if index not in points:  # learned representatives are projected next
            points[index] = look(layer, layer.heads(out)[-1], eps)

    def between(index: int, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        points[index].between(args[0])

    def after(index: int, block: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        rates, found = points.pop(index).after(out, count=isinstance(getattr(block, "ff", None), ISTA))
        taken.append(rates)
        nonzero.append((found, out.numel()))

    with probing(model) as (anatomy, stack):
        for index, layer in enumerate(anatomy.layers):
            stack.enter_context(layer.projection.register_forward_hook(partial(before, index, layer)))
            if layer.next_norm is not None:
                stack.enter_context(layer.next_norm.register_forward_pre_hook(partial(between, index)))
            stack.enter_context(layer.block.register_forward_hook(partial(after, index)))
        for batch in image_batches(images):
            anatomy.run(batch)
            means = {"rates": torch.stack(taken).mean(2), "sparsity": _sparsity(nonzero, taken[0].device)}
            dtype = means["rates"].dtype
            for name, mean in means.items():
                sums[name] = sums.get(name, 0) + mean.to(means["sparsity"].dtype) * len(batch)
            count += len(batch)
            taken.clear()
            nonzero.clear()

    rates, sparsity = ((sums[name] / count).to(dtype) for name in ("rates", "sparsity"))
    plain, normalized = (dict(zip(_NAMES, kind.unbind(1), strict=True)) for kind in rates.unbind(-1))
    return CodingRates(
        **plain,
        **{f"normalized_{name}": values for name, values in normalized.items()},
        sparsity=sparsity,
        eps=eps,
    )


def _sparsity(nonzero: list[tuple[Tensor | None, int]], device: torch.device) -> Tensor:
    """Share of exact zeros by layer, NaN where none are counted, (layers,)."""
    wide = solve_dtype(device)
    unknown = torch.full((), torch.nan, device=device, dtype=wide)
    counts = torch.stack([unknown if found is None else found.to(wide) for found, _ in nonzero])
    return 1 - counts / torch.tensor([of for _, of in nonzero], device=device, dtype=wide)
