"""The CBT decoder: CBSA layers without feed-forward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbsa._checks import check_int
from cbsa.layers import CBSA, LayerNorm
from cbsa.segmentation.decoders.decoder import Decoder
from cbsa.segmentation.decoders.layer import DecoderLayer, default_depth


class CBTDecoder(Decoder):
    """L × [x + CBSA(LN(x))] over patches and class tokens, then LN (paper, section 4.2): linear in N.

    Class tokens are extra tokens outside the pooling: representatives start as averages of patches alone,
    gather from patches and classes, and are broadcast to both. So the order of the classes does not matter,
    and it makes no difference that they stand before the patches here and after them in the authors' code.

    Args:
        dim: width of the tokens.
        num_classes: number of classes.
        depth: number of layers L; by default the authors' for this width (3 up to 384, 6 up to 768, then 9).
        num_heads: number of heads.
        head_dim: dimension of each; the authors take 3 heads × 100 at every width.
        representatives: layout of the representatives.
        tied: project back with the bases themselves (CBSA†).
        attention_kwargs: further arguments of :class:`cbsa.layers.CBSA`.
        weight_init: see :class:`Decoder`.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        depth: int | None = None,
        num_heads: int = 3,
        head_dim: int = 100,
        representatives: Sequence[int] = (10, 10),
        tied: bool = False,
        attention_kwargs: dict[str, Any] | None = None,
        weight_init: str = "reference",
    ) -> None:
        super().__init__(dim, num_classes, weight_init=weight_init)
        self.blocks = nn.ModuleList(
            DecoderLayer(
                CBSA(
                    dim,
                    num_heads,
                    head_dim=head_dim,
                    representatives=representatives,
                    tied=tied,
                    num_prefix_tokens=num_classes,
                    **attention_kwargs or {},
                )
            )
            for _ in range(default_depth(dim) if depth is None else check_int("depth", depth))
        )
        self.norm = LayerNorm(dim)
        self.init_weights()

    def refine(self, classes: Tensor, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Contract and broadcast over all tokens, layer by layer."""
        x = torch.cat([classes, patches], dim=1)
        for block in self.blocks:
            x = block(x, grid)
        x = self.norm(x)
        return x[:, : self.num_classes], x[:, self.num_classes :]
