"""From images to tokens: stem, positions and blocks, in bounded memory, and their inference form."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cbsa._checks import check_choice, check_covers_patch, check_images, check_int, check_sizes
from cbsa._tracing import is_exporting
from cbsa.layers import ISTA, ConvStem, LinearStem
from cbsa.layers.recomputed import recomputed
from cbsa.layers.tiles import embed_in_tiles, tile_rows
from cbsa.models.block import AttentionSpec, build_blocks
from cbsa.models.memory import kept_by_patch
from cbsa.ops import resample_tokens
from cbsa.ops.precision import autocast_dtype

STEMS: dict[str, type[ConvStem] | type[LinearStem]] = {"conv": ConvStem, "linear": LinearStem}


class TokenSequence(nn.Module):
    """CLS before the patches of a map, and their positions added; a module so that it can be compiled."""

    def forward(
        self, maps: Tensor, cls_token: Tensor, positions: Tensor, registers: Tensor | None = None
    ) -> Tensor:
        """Tokens (B, 1 + r + h·w, dim) of maps (B, dim, h, w), in their dtype; r registers follow CLS."""
        cls = cls_token.to(maps.dtype).expand(maps.shape[0], -1, -1)
        x = torch.cat([cls, maps.flatten(2).transpose(1, 2)], dim=1)
        x = x + positions.to(maps.dtype)
        if registers is None:
            return x
        return torch.cat([x[:, :1], registers.to(x.dtype).expand(x.shape[0], -1, -1), x[:, 1:]], dim=1)


class Encoder(nn.Module):
    """The part of a :class:`cbsa.models.Transformer` below its norm and classifier; arguments are its own.

    CLS, positions and registers are left to be drawn.
    """

    stem_bytes = 4 << 30  # activations of the stem's widest stage in inference; above, it runs in tiles
    tile_bytes = 1 << 30  # of a tile, unless the former is less
    kept_bytes = 32 << 30  # activations kept for the backward; above, they are recomputed if nothing is said

    def __init__(
        self,
        img_size: int | Sequence[int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        attention: AttentionSpec | Sequence[AttentionSpec],
        attention_kwargs: dict[str, Any],
        representatives: Sequence[int],
        legacy_pool: bool,
        feed_forward: str,
        stem: str,
        reg_tokens: int,
    ) -> None:
        super().__init__()
        self.embed_dim = check_int("embed_dim", embed_dim)
        self.patch_size = check_int("patch_size", patch_size)
        self.num_prefix_tokens = 1 + check_int("reg_tokens", reg_tokens, at_least=0)
        self.grad_checkpointing: bool | None = None
        self.img_size, self.grid = self._sizes(img_size)
        self.feed_forward = feed_forward
        self.patch_embed = STEMS[check_choice("stem", stem, STEMS)](
            embed_dim, patch_size=patch_size, in_chans=in_chans
        )
        self.sequence = TokenSequence()
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid[0] * self.grid[1], embed_dim))
        self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, embed_dim)) if reg_tokens else None
        pooling = {
            "representatives": tuple(representatives),
            "legacy_pool": legacy_pool,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
        self.blocks = build_blocks(
            attention,
            check_int("depth", depth),
            embed_dim,
            num_heads,
            pooling,
            attention_kwargs,
            feed_forward,
        )

    def set_grad_checkpointing(self, enable: bool | None = True) -> None:
        """Recompute activations of the stem and of blocks in the backward pass instead of storing them.

        Args:
            enable: True or False; None, as a new model has it, for images and batches of which more than
                ``kept_bytes`` would be stored. What is traced as a whole then stores them.
        """
        self.grad_checkpointing = enable

    # --- inference form ----------------------------------------------------------------------------------

    @property
    def fused(self) -> bool:
        """Whether the model is in its inference form."""
        return any(m.fused for m in self.modules() if isinstance(m, (ISTA, ConvStem)))

    def fuse(self) -> Self:
        """Switch to the inference form: BatchNorm folded into the stem, ISTA in one product.

        Parameters and checkpoints stay as they are; outputs agree to rounding. :meth:`unfuse` or
        ``train()`` goes back. ``load_state_dict`` fuses anew; call it again after changing parameters in
        another way.
        """
        self.eval()
        for module in self.modules():
            if isinstance(module, (ISTA, ConvStem)):
                module.fuse()
        return self

    def unfuse(self) -> Self:
        """Go back from the inference form."""
        for module in self.modules():
            if isinstance(module, (ISTA, ConvStem)):
                module.unfuse()
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a fused model is unfused first."""
        if mode and self.fused:
            self.unfuse()
        return super().train(mode)

    # --- forward -----------------------------------------------------------------------------------------

    def _sizes(self, img_size: int | Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        sides = check_sizes("img_size", img_size)
        if len(sides) > 2:
            raise ValueError(f"img_size must be one or two numbers, got {img_size!r}")
        if min(sides) < self.patch_size:
            raise ValueError(f"img_size={img_size!r} is smaller than a patch of {self.patch_size} px")
        height, width = sides[0], sides[-1]
        return (height, width), (-(-height // self.patch_size), -(-width // self.patch_size))

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """Position embedding (1, 1 + h·w, dim) for a grid of patches."""
        if not is_exporting() and grid == self.grid:
            return self.pos_embed
        prefix, patches = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        return torch.cat([prefix, resample_tokens(patches, self.grid, grid)], dim=1)

    def _embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Tokens (B, 1 + h·w, dim) of images (B, C, height, width), and their grid (h, w)."""
        check_images(images, self.patch_embed.in_chans)
        if not is_exporting():
            check_covers_patch(images, self.patch_size)
        height, width = (-(-side // self.patch_size) for side in images.shape[2:])
        maps = self._maps(images, (height, width))  # (B, dim, h, w)
        grid = (maps.shape[2], maps.shape[3])
        return self._sequence(maps, grid), grid

    def _maps(self, images: Tensor, grid: Any) -> Tensor:
        """Map (B, dim, h, w) of patches on a grid; by other ways where the stem would take too much memory.

        In inference it runs in tiles, in training its stages are recomputed. A compiled one is recomputed as
        a whole: it keeps less, and a compiler cannot be told how to treat BatchNorm's statistics.
        """
        stem = self.patch_embed
        maps: Tensor
        if isinstance(stem, ConvStem) and not torch.compiler.is_compiling():
            if self._recomputes(images, grid):
                compiled = stem._compiled_call_impl is not None
                maps = recomputed(stem, images, module=stem) if compiled else stem(images, recompute=True)
                return maps
            fits = tile_rows(stem, images, self.stem_bytes) >= self._share(grid)[0]
            if not (fits or self.training or torch.is_grad_enabled()):
                return self._in_tiles(images, tile_rows(stem, images, min(self.stem_bytes, self.tile_bytes)))
        maps = stem(images)
        return maps

    def _in_tiles(self, images: Tensor, rows: int) -> Tensor:
        """Map of patches, so many rows of them at a time."""
        stem = self.patch_embed
        assert isinstance(stem, ConvStem)
        return embed_in_tiles(stem, images, rows)

    def _share(self, grid: Any) -> tuple[int, int]:
        """The part of a grid of patches that a process has: all of it."""
        height, width = grid
        return height, width

    def _recomputes(self, x: Tensor, grid: Any) -> bool:
        """Whether activations of a batch x, with patches on a grid, are recomputed in the backward."""
        if not torch.is_grad_enabled():
            return False
        if self.grad_checkpointing is not None or torch.compiler.is_compiling():
            return bool(self.grad_checkpointing)
        kept = kept_by_patch(self.patch_embed, len(self.blocks), self.embed_dim, self.feed_forward)
        itemsize = (autocast_dtype(x.device) or x.dtype).itemsize
        return x.shape[0] * math.prod(self._share(grid)) * kept * itemsize > self.kept_bytes

    def _sequence(self, maps: Tensor, grid: tuple[int, int]) -> Tensor:
        """Tokens, prefix first, of a map of patches (B, dim, h, w) on a grid."""
        # Without a residual around ISTA nothing sums up over the depth: tokens stay in autocast's dtype.
        if self.feed_forward != "ista":
            maps = maps.to(self.pos_embed.dtype)
        tokens: Tensor = self.sequence(maps, self.cls_token, self._positions(grid), self.reg_token)
        return tokens

    def _run(self, block: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
        recompute = self._recomputes(x, grid)
        out: Tensor = checkpoint(block, x, grid, use_reentrant=False) if recompute else block(x, grid)
        return out

    def _tokens(self, images: Tensor) -> Tensor:
        """Tokens (B, 1 + h·w, dim) after the last block."""
        x, grid = self._embed(images)
        for block in self.blocks:
            x = self._run(block, x, grid)
        return x
