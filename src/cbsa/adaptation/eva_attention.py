"""The attentions of timm's ``Eva`` (EVA-02, DINOv3, ViTs with rotary embeddings) with another mixer."""

from typing import Any

import torch
from timm.layers import AttentionRope, apply_rot_embed_cat  # type: ignore[attr-defined]
from timm.models.eva import EvaAttention
from torch import Tensor
from torch.nn import functional as F

from cbsa.adaptation.timm_attention import AdaptedAttention


class _Rotary(AdaptedAttention):
    """Queries and keys of the patches are rotated by where these lie, as timm does it, before any pooling."""

    def forward(
        self,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Mix tokens x (B, N, dim), prefix tokens and patches; rope is (N, 2d), or (H, N, 2d) by heads."""
        self.refuse_masks(attn_mask, is_causal)
        timm: Any = self
        d = timm.proj.in_features // timm.num_heads  # not all releases of timm keep it as head_dim
        # (B, H, N, d); keys and values may have fewer heads
        q, k, v = (
            part.view(*part.shape[:2], part.shape[2] // d, d).transpose(1, 2) for part in self._project(x)
        )
        q, k = (self._rotate(part, rope).to(v.dtype) for part in (timm.q_norm(q), timm.k_norm(k)))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:  # queries in groups share keys and values
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self.mix(x, q, k, v)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, N, H d) by one projection or by three."""
        timm: Any = self
        if timm.qkv is None:
            return timm.q_proj(x), timm.k_proj(x), timm.v_proj(x)
        if getattr(self, "q_bias", None) is None:
            projected: Tensor = timm.qkv(x)
        else:  # EVA: a bias in three parts, that of the keys always 0
            bias = torch.cat((timm.q_bias, timm.k_bias, timm.v_bias))
            projected = timm.qkv(x) + bias if timm.qkv_bias_separate else F.linear(x, timm.qkv.weight, bias)
        return projected.chunk(3, dim=-1)

    def _rotate(self, heads: Tensor, rope: Tensor | None) -> Tensor:
        """Rotate the patches of heads (B, H, N, d); prefix tokens stay."""
        if rope is None:
            return heads
        prefix, patches = heads[:, :, : self.num_prefix_tokens], heads[:, :, self.num_prefix_tokens :]
        half = getattr(self, "rotate_half", False)
        return torch.cat((prefix, apply_rot_embed_cat(patches, rope, half=half)), dim=2)


class AdaptedEvaAttention(_Rotary, EvaAttention):
    """The adapted ``EvaAttention``: EVA-02, DINOv3, …"""

    original = EvaAttention


class AdaptedRopeAttention(_Rotary, AttentionRope):
    """The adapted ``AttentionRope``: ViTs with rotary embeddings, axial or mixed, Perception Encoder, …"""

    original = AttentionRope
