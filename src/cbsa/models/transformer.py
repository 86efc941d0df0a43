"""The one transformer class behind every model here."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cbsa._checks import check_choice, check_images, check_int, check_sizes
from cbsa._tracing import is_exporting
from cbsa.layers import ATTENTIONS, CBSA, ISTA, MLP, Attention, ConvStem, LayerNorm, LinearStem
from cbsa.layers.recomputed import recomputed
from cbsa.layers.tiles import embed_in_tiles, tile_rows
from cbsa.models.memory import kept_by_patch
from cbsa.ops import resample_tokens
from cbsa.ops.availability import kernels_serve_compiled
from cbsa.ops.precision import autocast_dtype

STEMS: dict[str, type[ConvStem] | type[LinearStem]] = {"conv": ConvStem, "linear": LinearStem}
FEED_FORWARDS = ("ista", "mlp")
POOLS = ("token", "avg", "")
INITIALISATIONS = ("reference", "unit_steps", "small_embeddings")

AttentionSpec = str | type[Attention]


class Block(nn.Module):
    """Attention with a residual, then a feed-forward: ISTA without one, or an MLP with one."""

    def __init__(self, dim: int, attention: Attention, feed_forward: ISTA | MLP) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = attention
        self.norm2 = LayerNorm(dim)
        self.ff = feed_forward

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Update tokens x (B, N, dim) whose patches lie on ``grid``."""
        x, normed = self.norm1.beside(x)
        if isinstance(self.ff, MLP):
            x = x + self.attn(normed, grid)
            del normed
            more: Tensor = self.ff(self.norm2(x))
            return x + more
        shift = self._left_to_the_norm(x)
        update: Tensor = self.attn(normed, grid, bias=shift is None)
        del normed  # what is read no more is let go: each is as large as the tokens
        normed = self.norm2.of_sum(x, update, shift)
        del update
        codes: Tensor = self.ff(normed)
        return codes

    def _left_to_the_norm(self, x: Tensor) -> Tensor | None:
        """The bias of the attention, where the norm's kernels add it: they know its gradient anyway."""
        last = self.attn.to_out
        return (
            last.bias if last is not None and torch.is_grad_enabled() and kernels_serve_compiled(x) else None
        )


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


class Transformer(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="cbsa",
    tags=["image-classification", "linear-attention", "interpretability"],
    license="mit",
):
    """A vision transformer whose attention, feed-forward and stem are choices, with timm's model contract.

    CBT is ``attention="cbsa"`` with ISTA and a convolutional stem; CRATE, ToST, Agent and ViT differ in these
    choices alone. Images may have any size from one patch on: a side of n pixels gives ⌈n / patch_size⌉
    patches, and the position embedding is resampled (bicubic, antialiased) to their grid.

    Args:
        img_size: size (height, width) that the position embedding is made for.
        patch_size: side of a patch in pixels.
        in_chans: channels of the image.
        num_classes: number of classes; 0 for no classifier.
        global_pool: what the classifier sees: ``"token"`` (CLS), ``"avg"`` (mean of patches), ``""`` (all).
        embed_dim: width.
        depth: number of blocks.
        num_heads: number of heads.
        attention: a name of :data:`cbsa.layers.ATTENTIONS`, a class, or a sequence of them, one per block.
        attention_kwargs: further arguments of the attention layers.
        representatives: layout of the representatives of CBSA and Agent attention.
        legacy_pool: pool as the authors' code does (for their checkpoints); see :class:`cbsa.layers.CBSA`.
        feed_forward: ``"ista"`` or ``"mlp"``.
        stem: ``"conv"`` or ``"linear"``.
        weight_init: ``"reference"`` draws everything as the authors' code does: CLS and positions standard
            normal, step sizes standard normal. ``"unit_steps"`` sets the step sizes to 1 and draws CLS and
            positions with standard deviation 0.02; ``"small_embeddings"`` does the latter alone.
        reg_tokens: number of registers: learned tokens after CLS, without position, which the classifier does
            not see (Darcet et al., 2024); not in the paper's models.
        device: where to create the parameters.
        dtype: in what dtype.
    """

    stem_bytes = 4 << 30  # activations of the stem's widest stage in inference; above, it runs in tiles
    tile_bytes = 1 << 30  # of a tile, unless the former is less
    kept_bytes = (
        32 << 30
    )  # activations kept for the backward; above, they are recomputed, unless told otherwise

    def __init__(
        self,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        attention: AttentionSpec | Sequence[AttentionSpec] = "cbsa",
        attention_kwargs: dict[str, Any] | None = None,
        representatives: Sequence[int] = (8, 8),
        legacy_pool: bool = False,
        feed_forward: str = "ista",
        stem: str = "conv",
        weight_init: str = "reference",
        reg_tokens: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, at_least=0)
        self.global_pool = check_choice("global_pool", global_pool, POOLS)
        self.embed_dim = self.num_features = self.head_hidden_size = check_int("embed_dim", embed_dim)
        self.patch_size = check_int("patch_size", patch_size)
        self.weight_init = check_choice("weight_init", weight_init, INITIALISATIONS)
        self.num_prefix_tokens = 1 + check_int("reg_tokens", reg_tokens, at_least=0)
        self.grad_checkpointing: bool | None = None
        self.img_size, self.grid = self._sizes(img_size)
        self.feed_forward = check_choice("feed_forward", feed_forward, FEED_FORWARDS)
        check_choice("stem", stem, STEMS)
        specs = _per_block(attention, check_int("depth", depth))
        pooling = {
            "representatives": tuple(representatives),
            "legacy_pool": legacy_pool,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
        with torch.device(device) if device is not None else torch.device(torch.get_default_device()):
            self.patch_embed = STEMS[stem](embed_dim, patch_size=patch_size, in_chans=in_chans)
            self.sequence = TokenSequence()
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
            self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid[0] * self.grid[1], embed_dim))
            self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, embed_dim)) if reg_tokens else None
            self.blocks = nn.ModuleList(
                Block(
                    embed_dim,
                    _build(spec, embed_dim, num_heads, pooling, attention_kwargs or {}),
                    ISTA(embed_dim) if feed_forward == "ista" else MLP(embed_dim),
                )
                for spec in specs
            )
            self.norm: nn.Module = LayerNorm(embed_dim)
            self.head: nn.Module = nn.Linear(embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": patch_size} for i in range(depth)
        ]
        self._initialise_own()
        if dtype is not None:
            self.to(dtype)

    def init_weights(self) -> None:
        """Draw all parameters anew; after ``to_empty``, this is what makes a model of a meta-device one."""
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()
        self._initialise_own()

    @torch.no_grad()
    def _initialise_own(self) -> None:
        std = 1.0 if self.weight_init == "reference" else 0.02
        nn.init.normal_(self.cls_token, std=std)
        nn.init.normal_(self.pos_embed, std=std)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=std)
        if self.weight_init == "unit_steps":
            for name, parameter in self.named_parameters():
                if name.endswith((".step_rep", ".step_out")):
                    nn.init.ones_(parameter)

    # --- timm's contract: parameters -------------------------------------------------------------------

    def no_weight_decay(self) -> set[str]:
        """Parameters that recipes with selective decay leave alone."""
        steps = {n for n, _ in self.named_parameters() if n.endswith((".step_rep", ".step_out", ".temp"))}
        return {"pos_embed", "cls_token"} | steps | ({"reg_token"} if self.reg_token is not None else set())

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that order parameters by depth, for layer-wise learning rates."""
        blocks = r"^blocks\.(\d+)"
        return {
            "stem": r"^cls_token|pos_embed|reg_token|patch_embed",
            "blocks": blocks if coarse else [(blocks, None), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool | None = True) -> None:
        """Recompute activations of the stem and of blocks in the backward pass instead of storing them.

        Args:
            enable: True or False; None, as a new model has it, for images and batches of which more than
                ``kept_bytes`` would be stored. What is traced as a whole then stores them.
        """
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new classifier of ``num_classes`` on top; 0 removes it."""
        self.num_classes = check_int("num_classes", num_classes, at_least=0)
        if global_pool is not None:
            self.global_pool = check_choice("global_pool", global_pool, POOLS)
        self.record(num_classes=self.num_classes, global_pool=self.global_pool)
        head = nn.Linear(self.embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.head = head.to(self.pos_embed.device, self.pos_embed.dtype)

    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Make ``img_size`` the model's own: the position embedding is resampled once and for all."""
        size, grid = self._sizes(img_size)
        self.pos_embed = nn.Parameter(self._positions(grid).detach().clone())
        self.img_size, self.grid = size, grid
        self.record(img_size=list(size))

    def record(self, **arguments: Any) -> None:
        """Note constructor arguments the model has come to have, in the configuration it is saved with."""
        if isinstance(self._hub_mixin_config, dict):
            self._hub_mixin_config.update(arguments)

    # --- inference form ----------------------------------------------------------------------------------

    @property
    def fused(self) -> bool:
        """Whether the model is in its inference form."""
        return any(m.fused for m in self.modules() if isinstance(m, (ISTA, ConvStem)))

    def fuse(self) -> "Transformer":
        """Switch to the inference form: BatchNorm folded into the stem, ISTA in one product.

        Parameters and checkpoints stay as they are; outputs agree to rounding. :meth:`unfuse` or
        ``train()`` goes back. Call it again after changing parameters.
        """
        self.eval()
        for module in self.modules():
            if isinstance(module, (ISTA, ConvStem)):
                module.fuse()
        return self

    def unfuse(self) -> "Transformer":
        """Go back from the inference form."""
        for module in self.modules():
            if isinstance(module, (ISTA, ConvStem)):
                module.unfuse()
        return self

    def train(self, mode: bool = True) -> "Transformer":
        """Set training mode; a fused model is unfused first."""
        if mode and self.fused:
            self.unfuse()
        return super().train(mode)

    # --- forward -----------------------------------------------------------------------------------------

    def _sizes(self, img_size: int | Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        sides = check_sizes("img_size", img_size)
        if len(sides) > 2:
            raise ValueError(f"img_size must be one or two numbers, got {img_size!r}")
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
        if not is_exporting() and min(images.shape[2:]) < self.patch_size:
            height, width = images.shape[2:]
            raise ValueError(
                f"images of {height}×{width} px are smaller than a patch of {self.patch_size} px"
            )
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

    def forward_features(self, images: Tensor) -> Tensor:
        """Normalised tokens (B, 1 + h·w, dim) after the last block."""
        out: Tensor = self.norm(self._tokens(images))
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from tokens, or what the classifier would see (``pre_logits``)."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = self._mean_of_patches(x)
        return x if pre_logits else self.head(x)

    def _mean_of_patches(self, x: Tensor) -> Tensor:
        """Mean (B, dim) of the patches among tokens x (B, N, dim)."""
        return x[:, self.num_prefix_tokens :].mean(1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, height, width)."""
        x = self._tokens(images)
        if self.global_pool == "token":
            x = x[:, :1]  # the classifier sees nothing else
        return self.forward_head(self.norm(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Features after some blocks, in timm's form.

        Args:
            x: images (B, C, height, width).
            indices: the last n blocks if a number, all if None, else these.
            return_prefix_tokens: pairs of patch and prefix tokens instead of patch tokens.
            norm: apply the final norm to each.
            stop_early: leave out the blocks after the last one asked for.
            output_fmt: ``"NCHW"`` maps or ``"NLC"`` tokens.
            intermediates_only: do not return the final features.

        Returns:
            The list of intermediates, or (final features, list).
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        wanted, last = feature_take_indices(len(self.blocks), indices)
        tokens, grid = self._embed(x)
        features = []
        for index, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            tokens = self._run(block, tokens, grid)
            if index in wanted:
                features.append(self.norm(tokens) if norm else tokens)
        prefix = [f[:, : self.num_prefix_tokens] for f in features]
        patches = [f[:, self.num_prefix_tokens :] for f in features]
        if output_fmt == "NCHW":
            patches = [self._to_map(f, grid) for f in patches]
        result: list[Any] = list(zip(patches, prefix, strict=True)) if return_prefix_tokens else patches
        return result if intermediates_only else (self.norm(tokens), result)

    def _to_map(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map (B, dim, h, w) of patches (B, h·w, dim) on a grid."""
        return patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid).contiguous()

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the blocks after the last one asked for (and the norm, the classifier)."""
        wanted, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return list(wanted)


def _per_block(attention: AttentionSpec | Sequence[AttentionSpec], depth: int) -> list[AttentionSpec]:
    if isinstance(attention, (str, type)):
        return [attention] * depth
    specs = list(attention)
    if len(specs) != depth:
        raise ValueError(f"attention names {len(specs)} layers, but depth={depth}")
    return specs


def _build(
    spec: AttentionSpec, dim: int, num_heads: int, pooling: dict[str, Any], kwargs: dict[str, Any]
) -> Attention:
    """One attention layer; those that pool are told how."""
    factory = ATTENTIONS[check_choice("attention", spec, ATTENTIONS)] if isinstance(spec, str) else spec
    pools = getattr(factory, "func", factory)
    if isinstance(pools, type) and issubclass(pools, CBSA):
        kwargs = pooling | kwargs
    elif pooling["num_prefix_tokens"] != 1:
        kwargs = {"num_prefix_tokens": pooling["num_prefix_tokens"]} | kwargs
    return factory(dim, num_heads, **kwargs)
