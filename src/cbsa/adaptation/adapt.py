"""``cbsa.adapt``: another attention in a ViT that exists already."""

import copy as copying
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from cbsa._checks import check_choice, check_int
from cbsa.adaptation.eva_attention import AdaptedEvaAttention, AdaptedRopeAttention
from cbsa.adaptation.layout import TokenLayout
from cbsa.adaptation.style import STYLES, Style
from cbsa.adaptation.timm_attention import AdaptedAttention, AdaptedViTAttention, check_dropout

_ADAPTED = (AdaptedViTAttention, AdaptedEvaAttention, AdaptedRopeAttention)
Model = TypeVar("Model", bound=nn.Module)


def adapt(
    vit: Model,
    style: str = "cbsa",
    *,
    layers: Iterable[int] | None = None,
    representatives: Sequence[int] | None = (8, 8),
    kernel: str = "relu",
    broadcast_scale: float | None = None,
    broadcast: str = "transpose",
    impl: str = "auto",
    copy: bool = False,
) -> Model:
    """Swap the attention of a ViT for one in linear time, keeping its weights (paper section 4.2).

    Query, key, value and output projections stay where they are, under their names: checkpoints load before
    and after. Fine-tune the result: the swap alone changes the function.

    Args:
        vit: a ``VisionTransformer`` of timm (ViT, DeiT, DINOv2, CLIP and SigLIP towers, …), one of its
            ``Eva`` models (EVA-02, DINOv3, ViTs with rotary embeddings, …), or a vision model of transformers
            (ViT, DeiT, DINOv2, SigLIP or its tower), whose layers change together.
        style: ``"cbsa"`` (CBSA*: with contraction), ``"agent"`` (CBSA∨: without, Agent attention),
            ``"linear"``, or ``"softmax"`` to go back to the original.
        layers: which layers, by number, negative ones from the end; all by default. Call again for others.
        representatives: layout of the representatives pooled from the queries of the patches (``"cbsa"`` and
            ``"agent"``); ``None`` takes all queries, prefix tokens included, which is quadratic again.
        kernel: kernel of the linear style, ``"relu"`` or ``"elu"`` (ELU + 1).
        broadcast_scale: scale of the agent style's second softmax, by default that of the first.
        broadcast: how tokens take up contractions in the cbsa style: ``"transpose"``, the paper's, or
            ``"softmax"``, which the paper does not have and which keeps more of the accuracy.
        impl: ``"auto"``, ``"reference"``, ``"sdpa"`` or ``"triton"``; see :mod:`cbsa.ops`.
        copy: leave ``vit`` as it is and change a copy.

    Returns:
        The model that was changed: ``vit`` itself, or its copy.
    """
    check_choice("style", style, STYLES)
    layout: Any = representatives
    wanted = Style(style, layout, kernel, broadcast_scale, broadcast, impl)
    if is_of_transformers(vit):
        return _adapt_transformers(vit, wanted, layers, copy)
    swap = None if style == "softmax" else wanted
    check_model(vit)
    chosen = chosen_layers(layers, len(vit.blocks))  # type: ignore[arg-type]
    for index in chosen:
        check_block(vit, index, swap)
    model = copying.deepcopy(vit) if copy else vit
    tokens = _layout_of(model)
    for index in chosen:
        block: Any = model.blocks[index]  # type: ignore[index]
        if swap is not None:
            block.attn = _adapted_class(block.attn).take_over(block.attn, swap, tokens)
        elif isinstance(block.attn, AdaptedAttention):
            block.attn = block.attn.give_back()
    _link(model, tokens)
    return model


def check_model(vit: Any) -> None:
    """Refuse models whose tokens or attentions are not those of a plain ViT, by name."""
    if not isinstance(vit, nn.Module):
        kind = type(vit).__name__
        raise TypeError(f"vit must be a model, got {vit!r} of type {kind}; timm.create_model(name) makes one")
    if not isinstance(vit, (VisionTransformer, Eva)):
        raise TypeError(
            f"cannot adapt a {type(vit).__name__}; supported are timm's VisionTransformer models (ViT, DeiT, "
            "DINOv2, CLIP, SigLIP) and its Eva models (EVA-02, DINOv3, rotary ViTs), not those with relative "
            "positions (Beit), windows (Swin) or packed images (NaFlex), and vision models of transformers "
            "(ViT, DeiT, DINOv2, SigLIP)" + _inside(vit)
        )
    if isinstance(vit.patch_drop, nn.Module) and not isinstance(vit.patch_drop, nn.Identity):
        raise ValueError(
            f"patch_drop_rate={vit.patch_drop.prob}: pooling needs all patches of the grid; create the model "
            "with patch_drop_rate=0"
        )


def _inside(wrapper: nn.Module) -> str:
    """Where a wrapper (DDP, a compiled model, timm's feature extraction, …) has what can be adapted."""
    for name, module in wrapper.named_modules():
        if isinstance(module, (VisionTransformer, Eva)):
            kind = type(module).__name__
            return f". It has a {kind} in it, .{name}: adapt that one, best before wrapping it"
    return ""


def check_block(vit: nn.Module, index: int, swap: Style | None) -> None:
    """Refuse a layer whose attention is not one of timm's plain ones, by name."""
    block = vit.blocks[index]  # type: ignore[index]
    attention = getattr(block, "attn", None)
    if not isinstance(attention, nn.Module):
        raise TypeError(f"cannot adapt layer {index}: a {type(block).__name__} has no attention of its own")
    if "forward" in vars(attention):
        raise ValueError(
            f"layer {index}: the forward of its attention was replaced on the module itself, and would run "
            "in place of the style's: undo that, and do it after adapting"
        )
    if swap is not None:
        _adapted_class(attention)
        check_dropout(attention)


def _adapted_class(attention: nn.Module) -> type[AdaptedAttention]:
    """The class that can take the place of an attention."""
    for adapted in _ADAPTED:
        if adapted.serves(attention):
            return adapted
    raise TypeError(
        f"cannot adapt attention of type {type(attention).__name__}; supported are timm's "
        + ", ".join(adapted.original.__name__ for adapted in _ADAPTED)
    )


def is_of_transformers(vit: nn.Module) -> bool:
    """Whether a model is of transformers, which is not imported to find out."""
    return any(kind.__module__.startswith("transformers.") for kind in type(vit).__mro__)


def _adapt_transformers(vit: Model, style: Style, layers: Iterable[int] | None, copy: bool) -> Model:
    if layers is not None or style.impl != "auto":
        what = f"layers={layers!r}" if layers is not None else f"impl={style.impl!r}"
        raise ValueError(
            f"{what}: the layers of a model of transformers change together, and its attention takes no "
            "impl; leave both out"
        )
    from cbsa.adaptation.huggingface import adapt_transformers

    return adapt_transformers(vit, style, copy)


def chosen_layers(layers: Iterable[int] | None, depth: int) -> list[int]:
    """The numbers of the chosen layers, from 0 on and in order."""
    if layers is None:
        return list(range(depth))
    if isinstance(layers, (str, int)) or not isinstance(layers, Iterable):
        raise TypeError(f"layers must be numbers of layers, such as range(6, 12) or [-1], got {layers!r}")
    numbers = [check_int("layers", index, at_least=-depth) for index in layers]
    beyond = [index for index in numbers if index >= depth]
    if beyond:
        raise ValueError(f"layers={beyond}: the model has {depth} layers, 0 to {depth - 1}")
    return sorted({index % depth for index in numbers})


def _adapted(model: nn.Module) -> list[AdaptedAttention]:
    return [module for module in model.modules() if isinstance(module, AdaptedAttention)]


def _layout_of(model: nn.Module) -> TokenLayout:
    """The layout that the model's adapted attentions share, or a new one."""
    known = [attention.layout for attention in _adapted(model) if attention.layout is not None]
    return known[0] if known else TokenLayout(model.num_prefix_tokens)  # type: ignore[arg-type]


def _link(model: nn.Module, layout: TokenLayout) -> None:
    """Let the layout follow the model's inputs, if there is an attention left that asks for it."""
    layout.leave()
    adapted = _adapted(model)
    for attention in adapted:
        attention.layout = layout
    if adapted:
        layout.follow(model.patch_embed)  # type: ignore[arg-type]
