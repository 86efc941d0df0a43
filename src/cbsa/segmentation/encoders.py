"""Encoders of a segmenter: models that give one token for each patch of an image of any size.

These are the models of this package, and timm's plain vision transformers: ``VisionTransformer`` (ViT, DeiT,
DINOv2, CLIP, …) and ``Eva`` (EVA-02, DINOv3, …). Their position embeddings are resampled to the image.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers.format import Format
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from cbsa._checks import check_sizes, did_you_mean
from cbsa.models import MODELS, ToST, Transformer
from cbsa.segmentation.encoder_weights import SavedModel, load_encoder_weights, saved_model


def create_encoder(
    name: str,
    *,
    pretrained: bool | str | Path | None = None,
    kwargs: dict[str, Any] | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Create an encoder by name.

    Args:
        name: a name of :data:`cbsa.models.MODELS` or of timm's; ``local-dir:…`` and ``hf-hub:…`` work too.
        pretrained: True for the weights timm knows, or a file or folder of weights.
        kwargs: further arguments of the model.

    Returns:
        The encoder, and the arguments that make it again: ``kwargs``, and what is stored with the weights.
    """
    like = _weightless(name)  # which class it is, and so what arguments it takes
    saved = _saved(pretrained)
    if saved is not None and saved.architecture != name.split(".")[0]:
        raise ValueError(
            f"pretrained_encoder={str(saved.folder)!r} holds weights of {saved.architecture!r}, but the "
            f"encoder is {name!r}"
        )
    arguments = (saved.arguments if saved is not None else {}) | (kwargs or {})
    options = arguments | {"num_classes": 0}
    if isinstance(like, (VisionTransformer, Eva)):
        options["dynamic_img_size"] = True
    try:
        encoder: nn.Module = timm.create_model(name, pretrained=pretrained is True, **options)
    except TypeError as error:
        raise ValueError(f"encoder={name!r} with encoder_kwargs={arguments}: {error}") from error
    if saved is not None:
        saved.load_into(encoder)
    elif pretrained and not isinstance(pretrained, bool):
        load_encoder_weights(encoder, pretrained)
    return encoder, arguments


def normalization(encoder: nn.Module) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel that an encoder expects images to be normalised by."""
    known = getattr(encoder, "pretrained_cfg", None) or {}
    default = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
    return {key: list(known.get(key) or default[key]) for key in ("mean", "std")}


def normalization_by_name(name: str, pretrained: bool | str | Path | None = None) -> dict[str, list[float]]:
    """What :func:`normalization` says of the encoder that :func:`create_encoder` makes of its arguments."""
    saved = _saved(pretrained)
    return normalization(_weightless(name)) | (saved.normalization if saved is not None else {})


def _weightless(name: str) -> nn.Module:
    """An encoder as its name has it, on the meta device."""
    if name not in MODELS and ":" not in name and not timm.is_model(name.split(".")[0]):
        raise ValueError(
            f"encoder={name!r}: no such model; see `cbsa models` and timm.list_models('vit*')"
            f"{did_you_mean(name, timm.list_models())}"
        )
    with torch.device("meta"):
        encoder: nn.Module = timm.create_model(name, num_classes=0)
    _check_class(encoder, name)
    return encoder


def _saved(pretrained: bool | str | Path | None) -> SavedModel | None:
    return None if pretrained is None or isinstance(pretrained, bool) else saved_model(pretrained)


def prepare_encoder(encoder: nn.Module) -> nn.Module:
    """Make a model an encoder, in place: no classifier, and images of any size. Refuse what cannot be one."""
    _check_class(encoder, type(encoder).__name__)
    if isinstance(encoder, VisionTransformer):
        # What its constructor does for dynamic_img_size=True.
        encoder.dynamic_img_size = True  # type: ignore[misc]
        encoder.patch_embed.strict_img_size = False
        encoder.patch_embed.flatten = False
        encoder.patch_embed.output_fmt = Format.NHWC
    elif isinstance(encoder, Eva) and not encoder.dynamic_img_size:
        raise ValueError("an Eva takes images of one size: create it with dynamic_img_size=True")
    encoder.reset_classifier(0, "")  # type: ignore[operator]
    if isinstance(encoder, ToST):
        encoder.cls_attn_blocks = nn.ModuleList()  # they serve the class token alone
    return encoder


def patch_tokens(encoder: nn.Module, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Normalised tokens (B, h·w, dim) after the last block, without prefix tokens, and their grid (h, w).

    Sides of the images (B, C, height, width) are multiples of the encoder's patch.
    """
    patch, (height, width) = patch_size(encoder), images.shape[2:]
    grid = (height // patch[0], width // patch[1])
    if images.shape[0] == 0:  # which timm's models cannot reshape
        return images.new_empty(0, grid[0] * grid[1], encoder.embed_dim), grid  # type: ignore[call-overload]
    x: Tensor = encoder.forward_features(images)  # type: ignore[operator]
    if isinstance(norm := getattr(encoder, "fc_norm", None), nn.Module):
        x = norm(x)  # where timm normalises after pooling, that norm; the identity elsewhere
    prefix: int = getattr(encoder, "num_prefix_tokens", 1)  # XCiT, the frame of ToST, does not say
    if x.shape[1] != prefix + grid[0] * grid[1]:
        raise ValueError(
            f"{type(encoder).__name__} gave {x.shape[1] - prefix} patch tokens for {grid[0]}×{grid[1]} "
            "patches: patch dropout has no place in segmentation; create the encoder with patch_drop_rate=0"
        )
    return x[:, prefix:], grid


def patch_size(encoder: nn.Module) -> tuple[int, int]:
    """Height and width of a patch in pixels."""
    if isinstance(encoder, (Transformer, ToST)):
        return encoder.patch_size, encoder.patch_size
    height, width = encoder.patch_embed.feat_ratio(as_scalar=False)  # type: ignore[operator,union-attr]
    return height, width


def in_channels(encoder: nn.Module) -> int:
    """Channels of the images."""
    if isinstance(encoder, Transformer):
        return encoder.patch_embed.in_chans
    return next(module.in_channels for module in encoder.modules() if isinstance(module, nn.Conv2d))


def own_size(encoder: nn.Module) -> tuple[int, int]:
    """Size (height, width) the position embedding is made for."""
    size: Any = encoder if isinstance(encoder, Transformer) else encoder.patch_embed
    height, width = size.img_size
    return height, width


def set_own_size(encoder: nn.Module, img_size: int | Sequence[int]) -> None:
    """Resample the position embedding for images of a size, in whole patches; one by formula needs none."""
    sides = check_sizes("img_size", img_size)
    if len(sides) > 2:
        raise ValueError(f"img_size must be one or two numbers, got {img_size!r}")
    if isinstance(encoder, ToST):
        return
    rows, columns = patch_size(encoder)
    size = -(-sides[0] // rows) * rows, -(-sides[-1] // columns) * columns
    if isinstance(encoder, Transformer):
        encoder.set_input_size(size)
        return
    vit: Any = encoder
    positions, grid = vit.pos_embed, vit.patch_embed.grid_size
    vit.set_input_size(size)
    if positions is not None and vit.pos_embed is positions:  # timm looks at the number of patches alone
        prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
        resampled = resample_abs_pos_embed(positions, vit.patch_embed.grid_size, grid, prefix)
        vit.pos_embed = nn.Parameter(resampled.detach())


def _check_class(encoder: object, name: str) -> None:
    if not isinstance(encoder, (Transformer, ToST, VisionTransformer, Eva)):
        raise ValueError(
            f"encoder={name!r}: a {type(encoder).__name__} cannot be an encoder; expected a model of cbsa "
            "(`cbsa models`), or one of timm's VisionTransformer (vit_*, deit*) or Eva (eva02_*, *_dinov3): "
            "these give one token for each patch, at any size"
        )
