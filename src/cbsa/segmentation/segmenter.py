"""An encoder and a decoder as one model."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_choice, check_images, check_number, check_positive_number
from cbsa.models import ToST, Transformer
from cbsa.models.checkpoints import model_arguments
from cbsa.segmentation.about import About
from cbsa.segmentation.decoders import DECODERS, Decoder
from cbsa.segmentation.encoders import (
    create_encoder,
    in_channels,
    normalization,
    own_size,
    patch_size,
    patch_tokens,
    prepare_encoder,
    set_own_size,
)


class Segmenter(nn.Module):
    """Logits of every class for every pixel: patch tokens of an encoder, a decoder, bilinear upsampling.

    Images may have any size: they are padded with 0 (the mean, of normalised images) at the bottom and on the
    right to whole patches, and the logits of the padding are cut off.

    Args:
        encoder: a model of this package or a plain vision transformer of timm. It becomes part of the
            segmenter: its classifier is removed.
        decoder: a decoder of its width.
        config: arguments of :func:`create_segmenter` that make the same model, to be saved with it.

    Attributes:
        about: names and colours of the classes and how images are looked at, as far as known; saved with it.
    """

    about: About

    def __init__(self, encoder: nn.Module, decoder: Decoder, *, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.encoder = prepare_encoder(encoder)
        self.decoder = decoder
        self.config = config
        self.about = About()
        self.in_chans = in_channels(encoder)
        width = encoder.embed_dim
        if width != decoder.dim:
            raise ValueError(
                f"the encoder gives tokens of width {width}, but the decoder has dim={decoder.dim}"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.decoder.num_classes

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return patch_size(self.encoder)

    @property
    def normalization(self) -> dict[str, list[float]]:
        """Mean and standard deviation of each channel that images are normalised by: the encoder's."""
        return normalization(self.encoder)

    def set_normalization(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Note by what images are normalised."""
        values = {"mean": [check_number("mean", v) for v in mean]}
        values |= {"std": [check_positive_number("std", v) for v in std]}
        known = getattr(self.encoder, "pretrained_cfg", None) or {}
        self.encoder.pretrained_cfg = {**known, **values}  # type: ignore[assignment]

    def no_weight_decay(self) -> set[str]:
        """Parameters that recipes with selective decay leave alone."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {f"{part}.{name}" for part, model in parts.items() for name in model.no_weight_decay()}  # type: ignore[operator]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations of the encoder in the backward pass instead of storing them."""
        self.encoder.set_grad_checkpointing(enable)  # type: ignore[operator]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes, height, width) of images (B, C, height, width)."""
        check_images(images, self.in_chans)
        height, width = images.shape[2:]
        rows, columns = self.patch_size
        images = F.pad(images, (0, -width % columns, 0, -height % rows))
        masks: Tensor = self.decoder(*patch_tokens(self.encoder, images))  # (B, num_classes, h, w)
        logits = F.interpolate(masks, size=images.shape[2:], mode="bilinear", align_corners=False)
        return logits[:, :, :height, :width]


def create_segmenter(
    encoder: str | nn.Module,
    decoder: str = "cbt",
    num_classes: int = 150,
    *,
    img_size: int | Sequence[int] | None = None,
    encoder_kwargs: dict[str, Any] | None = None,
    decoder_kwargs: dict[str, Any] | None = None,
    pretrained_encoder: bool | str | Path | None = None,
) -> Segmenter:
    """Create a segmenter.

    Args:
        encoder: name of a model of this package or of timm, or such a model, which becomes part of the
            segmenter. Which models serve: :mod:`cbsa.segmentation.encoders`.
        decoder: ``"cbt"``, ``"depict"`` or ``"mask_transformer"``.
        num_classes: number of classes.
        img_size: size (height, width) that the position embedding of the encoder is resampled to once and for
            all, e.g. that of the training crops; by default it keeps its own. Either way, it is resampled to
            images of another size in passing.
        encoder_kwargs: arguments of an encoder that is given by name.
        decoder_kwargs: arguments of the decoder's class, e.g. ``{"tied": True}`` for CBSA†, ``{"mode":
            "cross"}`` for DEPICT-CA, or a layout of heads.
        pretrained_encoder: weights of an encoder that is given by name: a folder of a saved model or of a run
            of ``cbsa train`` or ``cbsa adapt``, with all that made it, styles included; the name of weights
            that ship with the package; a file with timm's names, ours or the authors'; or True for those timm
            knows.
    """
    check_choice("decoder", decoder, DECODERS)
    decoder_class, options = DECODERS[decoder], dict(decoder_kwargs or {})
    known = [
        name for name in inspect.signature(decoder_class).parameters if name not in ("dim", "num_classes")
    ]
    for name in options:
        check_choice("decoder_kwargs", name, known)
    arguments: dict[str, Any] = {}
    if isinstance(encoder, str):
        model, arguments = create_encoder(encoder, pretrained=pretrained_encoder, kwargs=encoder_kwargs)
    elif pretrained_encoder or encoder_kwargs:
        raise ValueError("pretrained_encoder= and encoder_kwargs= are for an encoder given by name")
    else:
        model = encoder
    prepare_encoder(model)
    if img_size is not None:
        set_own_size(model, img_size)
    config = {
        **_encoder_config(model, arguments),
        "decoder": decoder,
        "decoder_kwargs": options,
        "num_classes": num_classes,
    }
    return Segmenter(model, decoder_class(model.embed_dim, num_classes, **options), config=config)  # type: ignore[arg-type]


def _encoder_config(encoder: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of :func:`create_segmenter` that make this encoder again."""
    known = getattr(encoder, "pretrained_cfg", None) or {}
    architecture = known.get("architecture")
    if isinstance(encoder, (Transformer, ToST)):
        kwargs = model_arguments(encoder) | {"in_chans": in_channels(encoder)}
        architecture = architecture or "cbt_tiny_patch16_224"  # all of its arguments are given
    return {"encoder": architecture, "encoder_kwargs": kwargs, "img_size": list(own_size(encoder))}
