"""The original ToST (Wu et al., ICLR 2025): XCiT's frame with TSSA in place of cross-covariance attention.

Its twins for fair comparison are in the registry as ``tost_{tiny,small}_…``; these models are here for the
checkpoints of the original code.
"""

from typing import Any

import torch
from timm.models.xcit import Xcit
from timm.models.xcit import checkpoint_filter_fn as xcit_filter
from torch import Tensor, nn

from cbsa._checks import check_covers_patch, check_images, check_int
from cbsa._tracing import is_exporting
from cbsa.layers import MLP, TSSA
from cbsa.layers.one_image import ordered_gradient


class ToSTBlock(nn.Module):
    """TSSA and an MLP, each with a residual and a learned scale per channel."""

    def __init__(self, dim: int, num_heads: int, scale: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = TSSA(dim, num_heads, qkv_bias=True, num_prefix_tokens=0)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim)
        self.gamma1 = nn.Parameter(scale * torch.ones(dim))
        self.gamma2 = nn.Parameter(scale * torch.ones(dim))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Update patch tokens x (B, height·width, dim)."""
        x = x + self.gamma1 * self.attn(self.norm1(x), (height, width))
        update: Tensor = self.gamma2 * self.mlp(self.norm2(x))
        return x + update


class _Stem(nn.Sequential):
    """timm's convolutions, whose BatchNorms are right for one image as well."""

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, C, height, width) as a map of patches (B, dim, h, w)."""
        return ordered_gradient(super().forward(images))  # type: ignore[no-untyped-call]


class ToST(Xcit):  # type: ignore[misc]
    """The original ToST: convolutional stem, Fourier positions, ToST blocks, two class-attention blocks.

    timm's XCiT holds the frame and the model contract; only the blocks are different.

    Args:
        embed_dim: width.
        depth: number of blocks.
        num_heads: number of heads.
        eta: initial scale of the residual branches.
        kwargs: further arguments of timm's ``Xcit`` (``img_size``, ``patch_size``, ``num_classes``, …).
    """

    def __init__(
        self, embed_dim: int = 384, depth: int = 12, num_heads: int = 8, eta: float = 1.0, **kwargs: Any
    ) -> None:
        check_int("num_classes", kwargs.get("num_classes", 1000), at_least=0)
        super().__init__(
            embed_dim=embed_dim, depth=0, num_heads=num_heads, eta=eta, tokens_norm=True, **kwargs
        )
        self.patch_embed.proj = _Stem(*self.patch_embed.proj)
        size: Any = self.patch_embed.img_size
        self.img_size: tuple[int, int] = tuple(size)
        self.patch_size: int = kwargs.get("patch_size", 16)
        self.in_chans: int = kwargs.get("in_chans", 3)
        # What it was made with, to be saved with it.
        self.arguments: dict[str, Any] = {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}
        self.arguments |= {
            "eta": eta,
            **{k: v for k, v in kwargs.items() if isinstance(v, (int, float, str))},
        }
        like: Any = {"device": self.cls_token.device, "dtype": self.cls_token.dtype}
        blocks = nn.ModuleList(ToSTBlock(embed_dim, num_heads, eta) for _ in range(depth))
        self.blocks: nn.ModuleList = blocks.to(**like)
        self.blocks.apply(self._init_weights)
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": self.patch_size, "module": f"blocks.{i}"}
            for i in range(depth)
        ]

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, 1 + h·w, dim) after the last block."""
        self._check(x)
        out: Tensor = super().forward_features(x)  # type: ignore[no-untyped-call]
        return out

    def forward_intermediates(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Features after some blocks, as timm's XCiT gives them."""
        self._check(x)
        return super().forward_intermediates(x, *args, **kwargs)

    def _check(self, images: Tensor) -> None:
        check_images(images, self.in_chans)
        if not is_exporting():
            check_covers_patch(images, self.patch_size)


def rename_original_keys(state_dict: dict[str, Tensor], model: ToST) -> dict[str, Tensor]:
    """Give the frame's tensors of an original ToST checkpoint timm's names, by timm's own rules for XCiT."""
    renamed: dict[str, Tensor] = xcit_filter(dict(state_dict), model)  # type: ignore[no-untyped-call]
    return renamed
