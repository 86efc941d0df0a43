"""Whether contracting the representatives is what compresses the tokens: reduced coding rates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice, check_eps, check_number
from cbsa.analysis.batches import Images
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into
from cbsa.objective import coding_rate
from cbsa.ops.precision import solve_dtype
from cbsa.ops.reference import per_head

COUNTERPARTS = ("operator", "step")


@dataclass(frozen=True)
class ReducedCodingRates:
    """Coding rates in nats before and after CBSA, by layer, head and image.

    Reductions are differences, before less after: positive where there is compression.
    """

    tokens_before: Tensor  # (layers, images, heads): R(w), what enters the operator
    tokens_after: Tensor  # (layers, images, heads): R of the compressed counterparts of the tokens
    representatives_before: Tensor  # (layers, images, heads): R(R), the extracted representatives
    representatives_after: Tensor  # (layers, images, heads): R of the contracted ones
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    eps: float  # quantisation precision ε
    kappa: float | None  # step size κ, None for each head's own
    counterpart: str  # "operator" or "step"

    @property
    def tokens(self) -> Tensor:
        """Reduction for the tokens, (layers, heads), mean over images."""
        return (self.tokens_before - self.tokens_after).mean(1)

    @property
    def representatives(self) -> Tensor:
        """Reduction for the representatives, (layers, heads), mean over images."""
        return (self.representatives_before - self.representatives_after).mean(1)

    @property
    def correlation(self) -> float:
        """Pearson correlation of both mean reductions over all layers and heads; NaN if one is constant."""
        return pearson(self.tokens.flatten(), self.representatives.flatten()).item()

    @property
    def correlation_over_heads(self) -> Tensor:
        """The same over the heads of each layer, (layers,)."""
        return pearson(self.tokens, self.representatives)

    @property
    def correlation_over_layers(self) -> Tensor:
        """The same over the layers, for each head number, (heads,): whether their trends agree."""
        return pearson(self.tokens.T, self.representatives.T)

    @property
    def correlation_over_images(self) -> Tensor:
        """The same over the images, for each layer and head, (layers, heads); NaN for one image."""
        tokens = self.tokens_before - self.tokens_after
        representatives = self.representatives_before - self.representatives_after
        return pearson(tokens.mT, representatives.mT)

    def table(self) -> list[dict[str, float]]:
        """One row per layer and head, ready for a CSV file; means over images."""
        names = ("tokens_before", "tokens_after", "representatives_before", "representatives_after")
        columns = {name: getattr(self, name).mean(1) for name in names}
        columns |= {"tokens_reduction": self.tokens, "representatives_reduction": self.representatives}
        columns["correlation_over_images"] = self.correlation_over_images
        return [
            {
                "layer": layer,
                "head": head,
                **{name: values[i, head].item() for name, values in columns.items()},
            }
            for i, layer in enumerate(self.layers)
            for head in range(self.tokens_before.shape[-1])
        ]


def reduced_coding_rates(
    model: nn.Module,
    images: Images,
    eps: float = 0.1,
    *,
    layers: Sequence[int] | None = None,
    kappa: float | None = 1.0,
    counterpart: str = "operator",
) -> ReducedCodingRates:
    """Measure how far CBSA compresses tokens and representatives in each subspace (paper, fig. reduced_cr).

    The caption: "The reduction with respect to input tokens is computed between the input and their
    compressed counterparts, whereas the reduction with respect to representatives is computed between the
    extracted and the contracted representatives", with "κ fixed to 1". Per head, with w = U_kᵀ LN(Z) (N×p,
    CLS included), A and R = Q + η A w of eq. cross-attn and C the contraction of R (eq. CBSA):

    - representatives: R(R) − R(C);
    - tokens: R(w) − R(κ Aᵀ C), the output of the operator being to the tokens what C is to the
      representatives.

    The paper does not write this out. ``counterpart="step"`` is the other reading, in which C is a direction
    to go (the paper calls it that too) and the residual belongs to the result: R(R) − R(R + κ C) and
    R(w) − R(w + κ Aᵀ C). The layers here add, as the authors' code does; the descent of eq. update-Z, which
    subtracts, is then ``kappa=-1`` ("sign inversion" that the paper's softmax absorbs into κ).

    Agent attention does not contract (C = R): its representatives' reduction by the operator is 0, and
    correlations with it are NaN.

    Args:
        model: a model with CBSA or Agent layers (:class:`cbsa.analysis.Anatomy` says of which kinds), hybrids
            too; its mode and hooks are left as they were. In an adapted ViT values stand for w.
        images: (B, C, height, width), of any size, or an iterable of such batches; they are moved to the
            model's device.
        eps: quantisation precision ε.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.
        kappa: step size κ of all heads; None for what each has learned.
        counterpart: ``"operator"`` or ``"step"``, what tokens and representatives are compared with.

    Returns:
        Rates on the model's device, in float32 (float64 for a float64 model).
    """
    check_eps(eps)
    check_choice("counterpart", counterpart, COUNTERPARTS)
    if kappa is not None:
        check_number("kappa", kappa)

    def take(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> Tensor:
        found = layer.extraction(streams, grid)
        w, (r, c) = found.tokens, found.representatives()
        step = found.step_out if kappa is None else torch.full_like(found.step_out, kappa)
        step = per_head(step, w.dtype)
        out = step * (found.broadcast.mT @ c)  # (B, H, N, p)
        after = (out, c) if counterpart == "operator" else (w + out, r + step * c)
        points = (w, after[0], r, after[1])
        return torch.stack([coding_rate(x, eps) for x in points])  # (4, B, H)

    looked = look_into(model, images, lambda anatomy: anatomy.with_representatives(layers), take)
    rates = torch.stack([torch.cat(parts, dim=1) for parts in looked.found], dim=1)  # (4, layers, images, H)
    before, after, extracted, contracted = rates.unbind()
    return ReducedCodingRates(before, after, extracted, contracted, looked.layers, eps, kappa, counterpart)


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Pearson correlation of x and y (..., n) over the last axis; NaN if either is constant to rounding."""
    wide = solve_dtype(x.device)
    rounding = torch.finfo(x.dtype).eps * x.shape[-1] ** 0.5
    centred: list[Tensor] = []
    for values in (x, y):
        precise = values.to(wide)
        rest = precise - precise.mean(-1, keepdim=True)
        norm = rest.norm(dim=-1, keepdim=True)
        constant = norm <= 4 * rounding * precise.abs().amax(-1, keepdim=True)
        centred.append((rest / norm).masked_fill(constant, torch.nan))
    both: Tensor = (centred[0] * centred[1]).sum(-1)
    return both.clamp(-1, 1).to(x.dtype)
