"""Images as pixels to be drawn, and maps laid over them."""

from typing import Any

import torch
from matplotlib import colormaps
from torch import Tensor
from torch.nn import functional as F

_HEAT = colormaps["inferno"]
_SMOOTH = 192  # pixels that the longer side of a map should have


def to_pixels(images: Tensor) -> Tensor:
    """Images (B, 1 or 3, height, width), uint8 or in [0, 1], as float32 (B, height, width, 3) on the CPU."""
    if images.dim() != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise ValueError(f"images must have shape (B, 1 or 3, height, width), got {tuple(images.shape)}")
    pixels = images.detach().cpu()
    pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
    low, high = pixels.min().item(), pixels.max().item()
    if not (low >= -1e-3 and high <= 1 + 1e-3):
        raise ValueError(
            f"images must be uint8 or lie in [0, 1], got values from {low:.3g} to {high:.3g}: "
            "undo their normalisation first"
        )
    return pixels.clamp(0, 1).expand(-1, 3, -1, -1).permute(0, 2, 3, 1)


def overlay(pixels: Tensor, heat: Tensor) -> Tensor:
    """Lay maps (B, h, w) over grey versions of pixels (B, height, width, 3), the more opaque the higher."""
    size = pixels.shape[1:3]
    smooth = F.interpolate(heat[:, None].float().cpu(), size=size, mode="bicubic", align_corners=False)[:, 0]
    smooth = smooth.clamp(min=0) / smooth.flatten(1).amax(1).clamp(min=1e-12)[:, None, None]
    colour = torch.from_numpy(_HEAT(smooth.numpy())[..., :3]).float()  # (B, height, width, 3)
    grey = (pixels * torch.tensor([0.299, 0.587, 0.114])).sum(-1, keepdim=True)
    opacity = 0.15 + 0.7 * smooth.unsqueeze(-1)
    return 0.7 * (1 - opacity) * grey + opacity * colour


def enlarge(pixels: Tensor) -> Tensor:
    """Repeat the pixels of small images, so that maps over them can be smooth."""
    times = max(1, _SMOOTH // max(pixels.shape[1:3]))
    return pixels.repeat_interleave(times, 1).repeat_interleave(times, 2)


def show_picture(axes: Any, picture: Tensor) -> None:
    """Draw one picture (height, width, 3); small ones keep their pixels sharp."""
    sharp = max(picture.shape[:2]) <= 64
    axes.imshow(picture.numpy(), interpolation="nearest" if sharp else "antialiased")
