"""The one transformer class behind every model here."""

from collections.abc import Sequence
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from cbsa._checks import check_choice, check_int
from cbsa.layers import LayerNorm
from cbsa.models.block import AttentionSpec
from cbsa.models.encoder import Encoder

POOLS = ("token", "avg", "")
INITIALISATIONS = ("reference", "unit_steps", "small_embeddings")


class Transformer(
    Encoder,
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
        with torch.device(device) if device is not None else torch.device(torch.get_default_device()):
            super().__init__(
                img_size=img_size,
                patch_size=patch_size,
                in_chans=in_chans,
                embed_dim=embed_dim,
                depth=depth,
                num_heads=num_heads,
                attention=attention,
                attention_kwargs=attention_kwargs or {},
                representatives=representatives,
                legacy_pool=legacy_pool,
                feed_forward=feed_forward,
                stem=stem,
                reg_tokens=reg_tokens,
            )
            self.num_classes = check_int("num_classes", num_classes, at_least=0)
            self.global_pool = check_choice("global_pool", global_pool, POOLS)
            self.weight_init = check_choice("weight_init", weight_init, INITIALISATIONS)
            self.num_features = self.head_hidden_size = embed_dim
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

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Put a new classifier of ``num_classes`` on top; 0 removes it."""
        check_int("num_classes", num_classes, at_least=0)
        if global_pool is not None:
            self.global_pool = check_choice("global_pool", global_pool, POOLS)
        self.num_classes = num_classes
        self.record(num_classes=self.num_classes, global_pool=self.global_pool)
        head = nn.Linear(self.embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.head = head.to(self.pos_embed.device, self.pos_embed.dtype)

    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Make ``img_size`` the model's own: the position embedding is resampled once and for all."""
        size, grid = self._sizes(img_size)
        if grid != self.grid:  # else an optimizer may go on with the parameter it has
            positions = self._positions(grid).detach().clone()
            self.pos_embed = nn.Parameter(positions, requires_grad=self.pos_embed.requires_grad)
        self.img_size, self.grid = size, grid
        self.record(img_size=list(size))

    def record(self, **arguments: Any) -> None:
        """Note constructor arguments the model has come to have, in the configuration it is saved with."""
        if isinstance(self._hub_mixin_config, dict):
            self._hub_mixin_config.update(arguments)

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
        output_dict: bool = False,
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
            output_dict: return a dict of timm's names.

        Returns:
            The list of intermediates, or (final features, list). With ``output_dict``:
            ``image_intermediates``, ``image_intermediates_prefix`` if prefix tokens are asked for, and
            ``image_features``, the final ones.
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
        if output_dict:
            named: dict[str, Any] = {"image_intermediates": patches}
            named |= {"image_intermediates_prefix": prefix} if return_prefix_tokens else {}
            return named if intermediates_only else named | {"image_features": self.norm(tokens)}
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
