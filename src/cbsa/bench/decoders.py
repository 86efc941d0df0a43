"""``cbsa bench decoders``: decoders of segmenters beside each other, on the patch tokens of one encoder.

A decoder is timed alone, from patch tokens to a mask of each class in patches: encoder and upsampling are the
same for all of them. A training step ends with the gradients of its parameters and of the patch tokens.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cbsa._checks import check_choice
from cbsa.bench import models
from cbsa.bench.model_forms import Form

# What a decoder is called here: its name in cbsa.segmentation.DECODERS, and its arguments.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "cbt": ("cbt", {}),
    "cbt-tied": ("cbt", {"tied": True}),
    "depict": ("depict", {}),
    "segmenter": ("mask_transformer", {}),
}
WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024}
RESOLUTIONS = (512, 1024, 2048)
NUM_CLASSES = 150


class DecoderForm(Form):
    """How a decoder is run; its name says decoder, width and patch size: ``cbt-tied_small_patch16``."""

    @property
    def grid(self) -> tuple[int, int]:
        """Patches of an image, down and to the right."""
        side = self.img_size // models.patch_size(self.name)
        return side, side

    @property
    def dim(self) -> int:
        """Width of the tokens."""
        return WIDTHS[models.split_name(self.name)[1]]

    def create(self) -> nn.Module:
        """The decoder with random weights, in float32."""
        from cbsa.segmentation import DECODERS as CLASSES

        decoder, options = DECODERS[models.split_name(self.name)[0]]
        return CLASSES[decoder](self.dim, self.num_classes, **options)

    def draw(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random patch tokens (B, h·w, dim), which need a gradient: the encoder's."""
        height, width = self.grid
        size = (self.batch, height * width, self.dim)
        return torch.randn(size, device=device, generator=generator).requires_grad_()

    def arguments(self) -> tuple[Any, ...]:
        """The grid of the patches."""
        return (self.grid,)

    def targets(self) -> tuple[int, ...]:
        """One class for each patch: (B, h, w)."""
        return (self.batch, *self.grid)


@dataclass(frozen=True)
class Config(models.Config):
    """What is measured, and how long."""

    img_sizes: tuple[int, ...] = RESOLUTIONS
    compilation: str = "model"
    num_classes: int = NUM_CLASSES
    kind: ClassVar[str] = "decoders"
    form: ClassVar[type[Form]] = DecoderForm
    code: ClassVar[tuple[str, ...]] = (*models.Config.code, "segmentation")


def names(
    decoders: tuple[str, ...] = tuple(DECODERS), widths: tuple[str, ...] = ("small",)
) -> tuple[str, ...]:
    """Names of decoders at some widths, as forms have them."""
    return tuple(
        f"{check_choice('decoder', decoder, DECODERS)}_{check_choice('width', width, WIDTHS)}_patch16"
        for width in widths
        for decoder in decoders
    )
