"""DEPICT's decoder (Wen and Li, NeurIPS 2024): MSSA layers with tied projections."""

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice, check_int
from cbsa.layers import MSSA, LayerNorm
from cbsa.segmentation.decoders.decoder import Decoder
from cbsa.segmentation.decoders.layer import DecoderLayer, default_depth

MODES = ("self", "cross")


class DepictDecoder(Decoder):
    """Softmax attention with one tied projection and one scalar step per layer, no feed-forward, quadratic.

    In mode ``"self"`` (DEPICT-SA) patches and class tokens attend to each other: L × [x + MSSA(LN(x))], then
    LN. In mode ``"cross"`` (DEPICT-CA) the patches are refined alone, Z = LN(L × [x + MSSA(LN(x))]), and the
    class tokens gather from them: q = LN(L' × [q + MSSA(LN(Z), query=q)]); there the cost of a class grows
    with the patches only.

    Args:
        dim: width of the tokens.
        num_classes: number of classes.
        mode: ``"self"`` or ``"cross"``.
        depth: number of layers L; by default that of the CBT decoder for this width.
        num_heads: number of heads.
        head_dim: dimension of each.
        cross_depth: number L' of layers in which class tokens gather, in mode ``"cross"``.
        cross_head_dim: dimension of their heads.
        weight_init: see :class:`Decoder`.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        mode: str = "self",
        depth: int | None = None,
        num_heads: int = 3,
        head_dim: int = 100,
        cross_depth: int = 3,
        cross_head_dim: int = 50,
        weight_init: str = "reference",
    ) -> None:
        super().__init__(dim, num_classes, weight_init=weight_init)
        self.mode = check_choice("mode", mode, MODES)
        prefix = num_classes if mode == "self" else 0
        self.blocks = nn.ModuleList(
            DecoderLayer(MSSA(dim, num_heads, head_dim=head_dim, tied=True, num_prefix_tokens=prefix))
            for _ in range(default_depth(dim) if depth is None else check_int("depth", depth))
        )
        self.norm = LayerNorm(dim)
        if mode == "cross":
            self.cross_blocks = nn.ModuleList(
                DecoderLayer(MSSA(dim, num_heads, head_dim=cross_head_dim, tied=True, num_prefix_tokens=0))
                for _ in range(check_int("cross_depth", cross_depth))
            )
            self.cross_norm = LayerNorm(dim)
        self.init_weights()

    def refine(self, classes: Tensor, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Attend over all tokens, or over patches first and then from classes to patches."""
        x = torch.cat([classes, patches], dim=1) if self.mode == "self" else patches
        for block in self.blocks:
            x = block(x, grid)
        x = self.norm(x)
        if self.mode == "self":
            return x[:, : self.num_classes], x[:, self.num_classes :]
        for block in self.cross_blocks:
            classes = block(x, query=classes)
        return self.cross_norm(classes), x
