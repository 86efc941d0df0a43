"""One attention layer as probes see it, whether of :mod:`cbsa.layers` or of a ViT of timm, adapted or not."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Attention as TimmAttention  # type: ignore[attr-defined]
from torch import Tensor, nn

from cbsa.adaptation import AdaptedAttention
from cbsa.adaptation.layout import TokenLayout
from cbsa.layers import CBSA, MHSA, MSSA, TSSA, Attention, LinearAttention
from cbsa.ops.extended import both_weights
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import contract, extraction_weights, per_head

Grid = tuple[int, int]
KINDS = ("extraction", "softmax", "kernel", "membership", "none")  # of maps over tokens
_KIND_OF_STYLE = {"cbsa": "extraction", "agent": "extraction", "linear": "kernel", "softmax": "softmax"}


@dataclass(frozen=True)
class Extraction:
    """What a layer with representatives does with the tokens of a batch, within each head."""

    tokens: Tensor  # (B, H, N, p): w, what representatives gather
    initial: Tensor  # (B, H, m, p): Q, from where they gather; the last time, if they do so several times
    weights: Tensor  # (B, H, m, N): A, by which they gather, eq. cross-attn
    broadcast: Tensor  # (B, H, m, N): by which tokens take them up; ``weights`` itself where that is Aᵀ
    step_rep: Tensor  # (H,): η
    step_out: Tensor  # (H,): κ
    contract: Callable[[Tensor], Tensor]

    def representatives(self) -> tuple[Tensor, Tensor]:
        """R = Q + η A w as they are extracted, and C as they are contracted, (B, H, m, p) each."""
        extracted = self.initial + per_head(self.step_rep, self.tokens.dtype) * (self.weights @ self.tokens)
        return extracted, self.contract(extracted)


class Layer(ABC):
    """An attention layer, and the block that it is in.

    Attributes:
        block: what tokens enter and leave.
        attention: the layer itself.
        norm: the norm before it.
        next_norm: the norm that sees the tokens after attention and residual; None where nothing follows.
        projection: the linear map into the heads.
        num_streams: how many projections of a token it gives, 1 or 3.
        kind: what map over tokens it has, one of :data:`KINDS`; see :class:`cbsa.analysis.LayerFactors`.
        scale: of the scores of its softmax.
        kernel: of linear attention.
        init: initial representatives: ``"pool"``, ``"learned"``, or ``"queries"`` if all queries are.
        name: what to call it.
    """

    attention: Any
    projection: nn.Linear
    num_streams: int
    kind: str
    scale: float
    kernel: str = ""
    init: str = ""
    name: str

    def __init__(self, block: nn.Module) -> None:
        self.block: Any = block
        self.attention = self.block.attn
        self.norm: Any = getattr(block, "norm1", None) or block.norm
        self.next_norm: Any = getattr(block, "norm2", None)

    @abstractmethod
    def grid(self, args: tuple[Any, ...]) -> Grid:
        """Layout of the patches in a call of the attention with these arguments."""

    @abstractmethod
    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """What representatives do with tokens by heads, in their dtype; for ``kind="extraction"`` alone."""

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """What ``projection`` returns, by heads: (B, H, N, p) for each stream."""
        sizes = self.num_streams, self.attention.num_heads, self.attention.head_dim
        return projected.view(*projected.shape[:2], *sizes).permute(2, 0, 3, 1, 4).unbind(0)

    def streams(self, x: Tensor) -> tuple[Tensor, ...]:
        """Normed tokens x (B, N, dim) as they are mixed, (B, H, N, p) each, in their accumulation dtype."""
        return tuple(s.to(accumulation_dtype(s.dtype)) for s in self.heads(self.projection(x)))


class OwnLayer(Layer):
    """An attention of :mod:`cbsa.layers`, in a block of a model or of a decoder."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__(block)
        attention: Attention = self.attention
        self.projection, self.num_streams = attention.proj, attention.streams
        self.scale, self.name = attention.head_dim**-0.5, type(attention).__name__
        self.kind = "none"
        if isinstance(attention, CBSA):
            self.kind, self.init = "extraction", attention.init
        elif isinstance(attention, MHSA) or (
            isinstance(attention, MSSA) and attention.contraction == "softmax"
        ):
            self.kind = "softmax"
        elif isinstance(attention, LinearAttention):
            self.kind, self.kernel = "kernel", attention.kernel
        elif isinstance(attention, TSSA):
            self.kind = "membership"

    def grid(self, args: tuple[Any, ...]) -> Grid:
        """Blocks hand the grid over beside the tokens."""
        grid: Grid = args[1]
        return grid

    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """The steps of eq. CBSA, with the options of the layer."""
        layer, (w,) = self.attention, streams
        initial = layer.last_representatives(w, grid)
        a, taken = both_weights(w, initial, layer.broadcast)
        broadcast = a if layer.broadcast == "transpose" else taken.mT
        return Extraction(w, initial, a, broadcast, layer.step_rep, layer.step_out, layer.contract)


class TimmLayer(Layer):
    """timm's attention in a ViT, adapted or not. With CBSA*, values are the tokens that are gathered.

    Args:
        block: a block of the ViT.
        layout: where it is told how the patches lie.
    """

    num_streams = 3

    def __init__(self, block: nn.Module, layout: TokenLayout) -> None:
        super().__init__(block)
        attention: TimmAttention = self.attention
        self.layout, self.projection, self.scale = layout, attention.qkv, attention.scale
        self.kind, self.name = "softmax", "timm's Attention"
        if isinstance(attention, AdaptedAttention):
            style = attention.style
            self.kind, self.kernel = _KIND_OF_STYLE[style.name], style.kernel
            self.init = "queries" if style.representatives is None else "pool"
            self.name = f"attention adapted with style={style.name!r}"

    def grid(self, args: tuple[Any, ...]) -> Grid:
        """timm does not hand it over: the patch embedding knows."""
        assert self.layout.grid is not None
        height, width = self.layout.grid
        return height, width

    def streams(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, normed as the attention does it."""
        q, k, v = self.heads(self.projection(x))
        mixed = self.attention.q_norm(q), self.attention.k_norm(k), v
        return tuple(s.to(accumulation_dtype(v.dtype)) for s in mixed)

    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """CBSA*: R = Q + A V. CBSA∨: D = A V, taken up by a softmax of its own (figure vit-adapt)."""
        style, (q, k, v) = self.attention.style, streams
        reps = style.pool(q, grid, self.layout.num_prefix_tokens)  # (B, H, m, d)
        a = extraction_weights(k, reps, self.scale)
        one = torch.ones(q.shape[1], device=q.device, dtype=q.dtype)
        if style.name == "cbsa":
            contraction = partial(contract, contraction="softmax", scale=self.scale, eps=1.0)  # eps: unused
            return Extraction(v, reps, a, a, one, one, contraction)
        sharpness = self.scale if style.broadcast_scale is None else style.broadcast_scale
        taken = ((q * sharpness) @ reps.mT).softmax(-1)  # (B, H, N, m)
        return Extraction(v, torch.zeros_like(reps), a, taken.mT, one, one, lambda r: r)
