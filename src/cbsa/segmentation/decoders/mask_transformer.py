"""Segmenter's mask transformer (Strudel et al., ICCV 2021): MHSA and MLP."""

import torch
from torch import Tensor, nn

from cbsa._checks import check_int
from cbsa.layers import MHSA, MLP, LayerNorm
from cbsa.models.block import Block
from cbsa.segmentation.decoders.decoder import Decoder

_HEAD_DIM = 64  # Segmenter's, at every width


class MaskTransformer(Decoder):
    """Blocks of a ViT over patches and class tokens, with a linear map before and one for each kind after.

    As Segmenter has it, except that there is no dropout: the decoders here differ in their layers alone.

    Args:
        dim: width of the tokens.
        num_classes: number of classes.
        depth: number of blocks.
        num_heads: number of heads; by default as many as give each 64 dimensions.
        head_dim: dimension of each, by default ``dim / num_heads``.
        mlp_ratio: width of the MLP's hidden layer over ``dim``.
        weight_init: see :class:`Decoder`; there are no step sizes here.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        depth: int = 2,
        num_heads: int | None = None,
        head_dim: int | None = None,
        mlp_ratio: float = 4.0,
        weight_init: str = "reference",
    ) -> None:
        super().__init__(dim, num_classes, weight_init=weight_init)
        heads = max(1, dim // _HEAD_DIM) if num_heads is None else num_heads
        self.proj_in = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                MHSA(dim, heads, head_dim=head_dim, num_prefix_tokens=num_classes),
                MLP(dim, ratio=mlp_ratio),
            )
            for _ in range(check_int("depth", depth))
        )
        self.norm = LayerNorm(dim)
        self.proj_patches = nn.Linear(dim, dim, bias=False)
        self.proj_classes = nn.Linear(dim, dim, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw all parameters anew; the maps before the comparison are normal with dim^-½."""
        super().init_weights()
        for proj in (self.proj_patches, self.proj_classes):
            nn.init.normal_(proj.weight, std=self.dim**-0.5)

    def refine(self, classes: Tensor, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Attend over all tokens, block by block."""
        x = torch.cat([classes, self.proj_in(patches).to(classes.dtype)], dim=1)
        for block in self.blocks:
            x = block(x, grid)
        x = self.norm(x)
        return self.proj_classes(x[:, : self.num_classes]), self.proj_patches(x[:, self.num_classes :])
