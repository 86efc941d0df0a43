"""How many representatives are really in use: the rank of the extraction."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_number
from cbsa.analysis.anatomy import Anatomy
from cbsa.analysis.batches import Images
from cbsa.analysis.layers import Grid, Layer
from cbsa.analysis.probing import look_into
from cbsa.ops.precision import accumulation_dtype, solve_dtype


@dataclass(frozen=True)
class ExtractionRanks:
    """Ranks of A_k (m×N) of eq. cross-attn by layer, image and head."""

    rank: Tensor  # (layers, images, heads) int64: singular values above tolerance·σ_max
    effective_rank: Tensor  # (layers, images, heads): exp of the entropy of σ/Σσ, from 1 to the rank
    spectrum: Tensor  # (layers, heads, m): σ/σ_max in descending order, mean over images
    maximum: int  # the largest rank there can be, min(m, N); of the largest image
    init: tuple[str, ...]  # of each layer, "pool", "learned", or "queries" if each query is one
    layers: tuple[int, ...]  # which layers of the model these are, from 0
    tolerance: float | None  # relative tolerance given, None for the rule of extraction_rank

    def table(self) -> list[dict[str, float | str]]:
        """One row per layer and head, ready for a CSV file; ranks over images."""
        ranks = self.rank.double() if self.rank.device.type != "mps" else self.rank.float()
        columns = {
            "rank": ranks.mean(1),
            "lowest_rank": ranks.amin(1),
            "highest_rank": ranks.amax(1),
            "effective_rank": self.effective_rank.mean(1),
        }
        return [
            {
                "layer": layer,
                "head": head,
                "init": self.init[i],
                **{name: values[i, head].item() for name, values in columns.items()},
                "maximum": self.maximum,
            }
            for i, layer in enumerate(self.layers)
            for head in range(self.rank.shape[-1])
        ]


def extraction_rank(
    model: nn.Module,
    images: Images,
    *,
    layers: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> ExtractionRanks:
    """Measure the rank of the extraction's attention A_k = softmax((U_kᵀZ)ᵀ(U_kᵀQ_ini)) (paper, appendix A).

    The paper finds the maximum, m = 64, for pooled initial representatives and about 5 for learned ones, and
    does not say how a singular value counts as 0. Here, as in NumPy and PyTorch: if it is at most
    eps·max(m, N)·σ_max, with eps that of the dtype A is computed in (float32 for all but float64 models).
    The singular values themselves are computed in float64, where the device has it. The effective rank
    (Roy and Vetterli, 2007), exp(−Σ q log q) with q = σ/Σσ, needs no threshold.

    Args:
        model: a model with CBSA or Agent layers (:class:`cbsa.analysis.Anatomy` says of which kinds), hybrids
            and adapted ViTs too; its mode and hooks are left as they were. Learned representatives
            are a model with ``init="learned"`` layers.
        images: (B, C, height, width), of any size, or an iterable of such batches; they are moved to the
            model's device.
        layers: which blocks, counted from 0, or from the end if negative; by default those with CBSA.
        tolerance: count singular values above this share of the largest one, instead of the rule above.

    Returns:
        Ranks on the model's device.
    """
    if tolerance is not None and not 0 <= check_number("tolerance", tolerance) < 1:
        raise ValueError(f"tolerance is a share of the largest singular value, 0 to below 1, got {tolerance}")
    inits: list[str] = []
    limits: list[int] = []

    def choose(anatomy: Anatomy) -> tuple[int, ...]:
        wanted = anatomy.with_representatives(layers)
        inits.extend(anatomy.layers[index].init for index in wanted)
        return wanted

    def take(layer: Layer, streams: Sequence[Tensor], grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        a = layer.extraction(streams, grid).weights  # (B, H, m, N)
        m, n = a.shape[-2:]
        limits.append(min(m, n))
        values = torch.linalg.svdvals(a.to(solve_dtype(a.device)))  # (B, H, min(m, N)), descending
        share = torch.finfo(a.dtype).eps * max(m, n) if tolerance is None else tolerance
        rank = (values > share * values[..., :1]).sum(-1)
        q = values / values.sum(-1, keepdim=True)
        effective = torch.special.entr(q).sum(-1).exp().to(accumulation_dtype(a.dtype))
        spectrum = F.pad(values / values[..., :1], (0, m - min(m, n))).sum(0)  # (H, m)
        return rank, effective, spectrum

    looked = look_into(model, images, choose, take)
    rank, effective = (
        torch.stack([torch.cat([batch[i] for batch in batches]) for batches in looked.found]) for i in (0, 1)
    )
    spectrum = torch.stack([torch.stack([batch[2] for batch in batches]).sum(0) for batches in looked.found])
    mean = (spectrum / rank.shape[1]).to(effective.dtype)
    return ExtractionRanks(rank, effective, mean, max(limits), tuple(inits), looked.layers, tolerance)
