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
from cbsa.objective import coding_rate
from cbsa.ops.availability import kernels_run_on
from cbsa.ops.precision import single_products_in_tf32, solve_dtype


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
        names = ("input", "attention", "feed_forward")
        columns = [*names, *(f"normalized_{name}" for name in names)]
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
    taken: dict[str, list[Tensor]] = {"input": [], "attention": [], "feed_forward": []}  # each (B, H, 2)
    zeros: list[Tensor] = []
    sums: dict[str, Tensor] = {}  # over images, (2, layers, H); of the sparsity, (layers,)
    count = 0
    dtype = torch.float32

    def before(layer: Layer, projection: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if len(taken["input"]) == len(taken["attention"]):  # learned representatives are projected next
            taken["input"].append(_rates(layer, out, eps))

    def between(layer: Layer, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        taken["attention"].append(_rates(layer, _projected(layer, args[0], eps), eps))

    def after(layer: Layer, block: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        taken["feed_forward"].append(_rates(layer, _projected(layer, out, eps), eps))
        if layer.next_norm is None:
            taken["attention"].append(taken["feed_forward"][-1])
        share = 1 - out.count_nonzero().to(solve_dtype(out.device)) / out.numel()
        sparse = isinstance(getattr(block, "ff", None), ISTA)
        zeros.append(share if sparse else torch.full_like(share, torch.nan))

    with probing(model) as (anatomy, stack):
        for layer in anatomy.layers:
            stack.enter_context(layer.projection.register_forward_hook(partial(before, layer)))
            if layer.next_norm is not None:
                stack.enter_context(layer.next_norm.register_forward_pre_hook(partial(between, layer)))
            stack.enter_context(layer.block.register_forward_hook(partial(after, layer)))
        for batch in image_batches(images):
            anatomy.run(batch)
            dtype, wide = taken["input"][0].dtype, solve_dtype(zeros[0].device)
            means = {name: torch.stack(values).mean(1).permute(2, 0, 1) for name, values in taken.items()}
            for name, mean in (means | {"sparsity": torch.stack(zeros)}).items():
                sums[name] = sums.get(name, 0) + mean.to(wide) * len(batch)
            count += len(batch)
            for values in (*taken.values(), zeros):
                values.clear()

    rates = {name: (total / count).to(dtype) for name, total in sums.items()}
    sparsity = rates.pop("sparsity")
    return CodingRates(
        **{name: plain for name, (plain, _) in rates.items()},
        **{f"normalized_{name}": normalized for name, (_, normalized) in rates.items()},
        sparsity=sparsity,
        eps=eps,
    )


def _projected(layer: Layer, x: Tensor, eps: float) -> Tensor:
    """Tokens x (B, N, dim) in a layer's subspaces, (B, N, streams·H·p)."""
    quick = _kernels_serve(layer, x, eps)
    with single_products_in_tf32() if quick else contextlib.nullcontext():
        return F.linear(layer.norm(x), layer.projection.weight, layer.projection.bias)


def _rates(layer: Layer, projected: Tensor, eps: float) -> Tensor:
    """Coding rates of projected tokens, plain and normalised, (B, H, 2)."""
    w = layer.heads(projected)[-1]  # (B, H, N, p)
    if _kernels_serve(layer, w, eps):
        from cbsa.ops.fused_rates import head_coding_rates

        return head_coding_rates(w, eps)
    return torch.stack([coding_rate(w, eps, normalize=normalize) for normalize in (False, True)], -1)


def _kernels_serve(layer: Layer, x: Tensor, eps: float) -> bool:
    """Whether kernels measure coding rates of x."""
    if not kernels_run_on(x.device) or x.dtype == torch.float64:
        return False
    from cbsa.ops.fused_rates import LEAST_EPS, MAX_HEAD_DIM

    return int(layer.attention.head_dim) <= MAX_HEAD_DIM and eps >= LEAST_EPS
