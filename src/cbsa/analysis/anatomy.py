"""Where the layers of a model are, and how it is run: what probes need to know of it, and no more."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from typing import Any

from timm.models.vision_transformer import Attention as TimmAttention  # type: ignore[attr-defined]
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from cbsa.adaptation import AdaptedAttention
from cbsa.adaptation.adapt import is_of_transformers
from cbsa.adaptation.layout import MapLayout, TokenLayout
from cbsa.adaptation.style import Style
from cbsa.analysis.layers import Grid, Layer, OwnLayer
from cbsa.analysis.vit_layers import TimmLayer, TransformersLayer
from cbsa.models import ToST, Transformer
from cbsa.ops.precision import no_autocast
from cbsa.segmentation import Segmenter
from cbsa.segmentation.decoders import Decoder

Look = Callable[[int, Layer, tuple[Tensor, ...], Grid], None]  # number, layer, tokens by heads, grid


class Anatomy:
    """The layers of a model that probes look at, in the order tokens go through them.

    - :class:`cbsa.models.Transformer`, and the blocks of the original ToST: all of their layers.
    - :class:`cbsa.segmentation.Segmenter`: the layers of its decoder, where the tokens are the classes and
      then the patches. Those of DEPICT-CA in which classes gather from patches are left out. For the encoder
      give ``segmenter.encoder``.
    - timm's ``VisionTransformer``, with layers that :func:`cbsa.adapt` changed or as it was.
    - ViT, DeiT, DINOv2 and SigLIP's vision model of transformers, likewise.

    Others are refused by name.

    Attributes:
        model: the model.
        layers: its layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.layers: tuple[Layer, ...]
        self._forward: Callable[[Tensor], object] = getattr(model, "forward_features", model)
        self._layout: TokenLayout | None = None
        self._patches: nn.Module | None = None  # the patch embedding that knows the grid
        if isinstance(model, Segmenter):
            self.layers = tuple(map(OwnLayer, model.decoder.blocks))  # type: ignore[arg-type]
        elif isinstance(model, (Transformer, ToST)):
            self.layers = tuple(map(OwnLayer, model.blocks))
        elif isinstance(model, VisionTransformer):
            layout = self._layout = TokenLayout(model.num_prefix_tokens)
            self._patches = model.patch_embed
            for index, block in enumerate(model.blocks):
                _check_block(block, index)
            self.layers = tuple(TimmLayer(block, layout) for block in model.blocks)
        elif is_of_transformers(model):
            self._look_into_transformers()
        else:
            raise TypeError(_refusal(model))

    def follow(self, stack: ExitStack) -> None:
        """Learn the grid of every input from now on, until the stack is closed; timm's layers ask for it."""
        if self._layout is not None and self._patches is not None:
            self._layout.follow(self._patches)
            stack.callback(self._layout.leave)

    def run(self, images: Tensor) -> None:
        """Run images (B, C, height, width) through the layers, on the model's device; hooks see the rest."""
        self._forward(images.to(next(self.model.parameters()).device))

    def watch(self, stack: ExitStack, wanted: Sequence[int], look: Look) -> None:
        """Let ``look`` see what enters some of the layers, by heads, until the stack is closed."""
        for index in dict.fromkeys(wanted):
            layer = self.layers[index]

            def hook(
                _: nn.Module, args: Any, named: dict[str, Any], index: int = index, layer: Layer = layer
            ) -> None:
                streams = layer.streams(args[0] if args else named["hidden_states"])
                with no_autocast(streams[0].device):
                    look(index, layer, streams, layer.grid(args))

            stack.enter_context(layer.attention.register_forward_pre_hook(hook, with_kwargs=True))

    def _look_into_transformers(self) -> None:
        """The layers of a vision model of transformers, or of the tower of one that reads too."""
        from cbsa.adaptation.huggingface import (
            IMPLEMENTATIONS,
            KNOWN,
            attentions_of,
            patch_embedding,
            prefix_tokens,
            style_of,
            vision_tower,
        )

        tower = vision_tower(self.model)
        config = tower.config
        if config.model_type not in KNOWN:
            raise TypeError(
                f"probes cannot look into a {type(self.model).__name__}: of transformers, they know models "
                f"of type {', '.join(KNOWN)}; its type is {config.model_type!r}"
            )
        self._forward = partial(tower, **_any_size(tower))
        layout = self._layout = MapLayout(prefix_tokens(config))
        self._patches = patch_embedding(tower)
        name = config._attn_implementation
        style = style_of(config, name) if name in IMPLEMENTATIONS else Style("softmax")
        attentions = attentions_of(tower, config)
        self.layers = tuple(
            TransformersLayer(block, attention, layout, style)
            for block in tower.modules()
            for attention in block.children()
            if attention in attentions
        )

    def chosen(self, layers: Sequence[int] | None) -> tuple[int, ...]:
        """Numbers of the layers asked for, counted from 0; all by default."""
        depth = len(self.layers)
        if layers is None:
            return tuple(range(depth))
        if not layers or not all(-depth <= layer < depth for layer in layers):
            raise ValueError(
                f"layers must be some of the {depth} blocks, {-depth} to {depth - 1}, got {layers}"
            )
        return tuple(layer % depth for layer in layers)

    def with_representatives(self, layers: Sequence[int] | None) -> tuple[int, ...]:
        """As :meth:`chosen`, of layers with representatives: all there are by default, and at least one."""
        wanted = self.chosen(layers)
        if layers is None:
            wanted = tuple(i for i in wanted if self.layers[i].kind == "extraction")
            if not wanted:
                kinds = ", ".join(sorted({layer.name for layer in self.layers}))
                raise TypeError(
                    f"the model has no CBSA or Agent layer (its attention is {kinds}), so no representatives "
                    "to look at: take another model"
                )
        for index in wanted:
            if self.layers[index].kind != "extraction":
                raise TypeError(
                    f"layer {index} is {self.layers[index].name}, which has no representatives: "
                    "ask for CBSA or Agent layers by layers=, or take another model"
                )
        return wanted


def _check_block(block: nn.Module, index: int) -> None:
    """Refuse blocks of timm that do not norm, attend, norm and feed forward with its plain attention."""
    plain = getattr(block, "_orig_mod", block)
    attention = getattr(plain, "attn", None)
    known = type(attention) is TimmAttention or isinstance(attention, AdaptedAttention)
    if type(plain) is not TimmBlock or not known:
        raise TypeError(
            f"layer {index} is a {type(plain).__name__} with {type(attention).__name__}: of timm's ViTs, "
            "probes know those of plain blocks, with its Attention or one that cbsa.adapt put there"
        )


def _any_size(tower: nn.Module) -> dict[str, bool]:
    """What a model of transformers must be told to take images of any size; some do so untold."""
    name = "interpolate_pos_encoding"
    return {name: True} if name in signature(tower.forward).parameters else {}


def _refusal(model: object) -> str:
    """Why there is no anatomy of a model, and what to give instead."""
    start = f"probes cannot look into a {type(model).__name__}"
    for name in ("module", "_orig_mod"):
        if isinstance(model, nn.Module) and isinstance(getattr(model, name, None), nn.Module):
            return f"{start}, a wrapper: give the model that it holds as .{name}"
    if isinstance(model, Decoder):
        return f"{start} alone, which sees no images: give its Segmenter, whose decoder is looked at"
    return (
        f"{start}: give a model of cbsa (a Transformer or the original ToST), a Segmenter, a "
        "VisionTransformer of timm or a ViT of transformers, adapted by cbsa.adapt or not"
    )
