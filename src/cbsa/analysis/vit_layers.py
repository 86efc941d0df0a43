"""The attention layers of ViTs of timm and transformers as probes see them, adapted or not."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Attention as TimmAttention  # type: ignore[attr-defined]
from torch import Tensor, nn

from cbsa.adaptation import AdaptedAttention
from cbsa.adaptation.layout import TokenLayout
from cbsa.adaptation.style import Style
from cbsa.analysis.layers import Extraction, Grid, Layer
from cbsa.ops.precision import accumulation_dtype
from cbsa.ops.reference import contract, extraction_weights

# By style: what map over tokens it has, and what the paper calls it.
_STYLES = {
    "cbsa": ("extraction", "CBSA*"),
    "agent": ("extraction", "Agent"),
    "linear": ("kernel", "LinearAttention"),
    "softmax": ("softmax", "MHSA"),
}
# The norms of a block of transformers, before its attention and after it.
_NORMS = (("layernorm_before", "layernorm_after"), ("norm1", "norm2"), ("layer_norm1", "layer_norm2"))


class ViTLayer(Layer):
    """Attention with query, key and value in some style. With CBSA*, values are the tokens that are gathered.

    Args:
        block: the block that it is in.
        attention: the attention.
        norms: the norms before it and after it.
        layout: where it is told how the patches lie.
        style: its style; ``Style("softmax")`` if it is not adapted.
        original: what to call it then.
    """

    def __init__(
        self,
        block: nn.Module,
        attention: nn.Module,
        norms: tuple[Any, Any],
        layout: TokenLayout,
        style: Style,
        original: str,
    ) -> None:
        super().__init__(block, attention, norms)
        self.layout, self.style = layout, style
        (self.kind, self.title), self.kernel = _STYLES[style.name], style.kernel
        adapted = style.name != "softmax"
        self.name = f"attention adapted with style={style.name!r}" if adapted else original
        if self.kind == "extraction":
            self.transposes = style.name == "cbsa" and style.broadcast == "transpose"
            self.init = "queries" if style.representatives is None else "pool"
            self.num_representatives = (
                None if style.representatives is None else math.prod(style.representatives)
            )

    @abstractmethod
    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, N, p) of normed tokens x (B, N, dim), as attention mixes them."""

    def grid(self, args: tuple[Any, ...]) -> Grid:
        """Attention of ViTs is not told: the patch embedding knows."""
        assert self.layout.grid is not None
        height, width = self.layout.grid
        return height, width

    def streams(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values in their accumulation dtype."""
        mixed = self.mixed(x)
        return tuple(s.to(accumulation_dtype(mixed[-1].dtype)) for s in mixed)

    def extraction(self, streams: Sequence[Tensor], grid: Grid) -> Extraction:
        """CBSA*: R = Q + A V. CBSA∨: D = A V, taken up by a softmax of its own (figure vit-adapt).

        CBSA* with a softmax on the way back is taken up by one of the keys.
        """
        style, (q, k, v) = self.style, streams
        reps = style.pool(q, grid, self.layout.num_prefix_tokens)  # (B, H, m, d)
        a = extraction_weights(k, reps, self.scale)
        one = torch.ones(q.shape[1], device=q.device, dtype=q.dtype)
        if style.name == "cbsa":
            contraction = partial(contract, contraction="softmax", scale=self.scale, eps=1.0)  # eps: unused
            by_softmax = style.broadcast == "softmax"
            taken = ((k * self.scale) @ reps.mT).softmax(-1).mT if by_softmax else a  # (B, H, m, N)
            return Extraction(v, reps, a, taken, one, one, contraction)
        sharpness = self.scale if style.broadcast_scale is None else style.broadcast_scale
        taken = ((q * sharpness) @ reps.mT).softmax(-1).mT  # (B, H, m, N)
        return Extraction(v, torch.zeros_like(reps), a, taken, one, one, lambda r: r)


class TimmLayer(ViTLayer):
    """timm's attention in a block of its ``VisionTransformer``."""

    def __init__(self, block: nn.Module, layout: TokenLayout) -> None:
        attention: TimmAttention = block.attn  # type: ignore[assignment]
        style = attention.style if isinstance(attention, AdaptedAttention) else Style("softmax")
        super().__init__(block, attention, (block.norm1, block.norm2), layout, style, "timm's Attention")
        self.projection, self.scale = attention.qkv, attention.scale
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One projection, and norms of queries and keys."""
        q, k, v = self.heads(self.projection(x))
        return self.attention.q_norm(q), self.attention.k_norm(k), v


class TransformersLayer(ViTLayer):
    """The attention of a vision model of transformers: three projections, mixed by what its config names.

    Args:
        block: a layer of the model.
        attention: the attention in it.
        layout: where it is told how the patches lie.
        style: what the config names.
    """

    def __init__(self, block: nn.Module, attention: Any, layout: TokenLayout, style: Style) -> None:
        before, after = next(names for names in _NORMS if hasattr(block, names[0]))
        norms = getattr(block, before), getattr(block, after)
        super().__init__(block, attention, norms, layout, style, f"transformers' {type(attention).__name__}")
        self.projection = attention.v_proj
        self.head_dim = attention.head_dim
        self.num_heads = attention.v_proj.out_features // attention.head_dim
        self.scale = attention.head_dim**-0.5

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A projection for each."""
        attention = self.attention
        q, k, v = (self.heads(p(x))[0] for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        return q, k, v
