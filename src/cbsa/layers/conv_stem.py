"""The convolutional stem that turns an image into patch tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from cbsa._checks import check_images, check_int
from cbsa.layers.inference import fuse_anew
from cbsa.layers.one_image import ordered_gradient
from cbsa.layers.recomputed import recomputed
from cbsa.ops.availability import kernels_serve_compiled
from cbsa.ops.precision import autocast_dtype

_FEW_CHANNELS = 4


class ConvStem(nn.Module):
    """log2(patch_size) stages of 3×3 convolution with stride 2 and BatchNorm, GELU between them.

    The width doubles from stage to stage up to ``dim``: d/8, d/4, d/2, d for patches of 16 px. A side of n
    pixels gives ⌈n / patch_size⌉ patches.

    Args:
        dim: width of the tokens.
        patch_size: side of a patch in pixels, a power of two.
        in_chans: channels of the image.
    """

    def __init__(self, dim: int, *, patch_size: int = 16, in_chans: int = 3) -> None:
        super().__init__()
        check_int("dim", dim)
        self.patch_size = check_int("patch_size", patch_size)
        self.in_chans = check_int("in_chans", in_chans)
        stages = patch_size.bit_length() - 1
        if patch_size < 2 or 1 << stages != patch_size:
            raise ValueError(f"patch_size must be a power of two of at least 2, got {patch_size}")
        if dim % (1 << (stages - 1)):
            raise ValueError(f"dim={dim} must be a multiple of patch_size / 2 = {patch_size // 2}")
        layers: list[nn.Module] = []
        channels = in_chans
        for stage in reversed(range(stages)):
            if layers:
                layers.append(nn.GELU())
            width = dim >> stage
            layers.append(
                nn.Sequential(
                    nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)
                )
            )
            channels = width
        self.proj = nn.Sequential(*layers)
        self.fused = False
        self.register_load_state_dict_post_hook(fuse_anew)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fuse(self) -> None:
        """Fold the BatchNorms' running statistics into the convolutions; :meth:`unfuse` undoes it."""
        for index in range(0, len(self.proj), 2):
            conv: Any = self.proj[index][0]  # type: ignore[index]
            norm: Any = self.proj[index][1]  # type: ignore[index]
            weight, bias = fuse_conv_bn_weights(
                conv.weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            self.register_buffer(f"fused_weight{index}", weight.detach(), persistent=False)
            self.register_buffer(f"fused_bias{index}", bias.detach(), persistent=False)
        self.fused = True

    def unfuse(self) -> None:
        """Go back to convolutions and BatchNorms."""
        for index in range(0, len(self.proj), 2) if self.fused else ():
            delattr(self, f"fused_weight{index}")
            delattr(self, f"fused_bias{index}")
        self.fused = False

    def forward(self, images: Tensor, recompute: bool = False) -> Tensor:
        """Embed images (B, in_chans, height, width) as a map of patches (B, dim, h, w).

        With ``recompute`` the inputs of stages alone are kept for the backward, which recomputes the rest.
        """
        check_images(images, self.in_chans)
        x = images
        for index in range(0, len(self.proj), 2):
            x = recomputed(self._stage, x, index, module=self) if recompute else self._stage(x, index)
        return x

    def _stage(self, x: Tensor, index: int) -> Tensor:
        """A stage: convolution, BatchNorm, and GELU but in the last."""
        last = index == len(self.proj) - 1
        if not last and self._runs_on_kernels(x, index):
            return self._stage_on_kernels(x, index)
        x = self._convolve(x, index)
        return ordered_gradient(x) if last else self.proj[index + 1](x)

    def _convolve(self, x: Tensor, index: int) -> Tensor:
        """A convolution and its BatchNorm, which may be folded into it."""
        if self.fused:
            return F.conv2d(x, *self._folded(index), stride=2, padding=1)
        out: Tensor = self.proj[index](x)
        return out

    def _folded(self, index: int) -> tuple[Tensor, Tensor]:
        """Weight and bias of that convolution."""
        return getattr(self, f"fused_weight{index}"), getattr(self, f"fused_bias{index}")

    def _runs_on_kernels(self, x: Tensor, index: int) -> bool:
        """Whether BatchNorm and GELU of a stage, or all of the first one, run on kernels of our own."""
        half = (autocast_dtype(x.device) or x.dtype) in (torch.bfloat16, torch.float16)
        if not half or not kernels_serve_compiled(x):
            return False
        first = index == 0 and self.in_chans <= _FEW_CHANNELS and not x.requires_grad
        norm: Any = self.proj[index][1]  # type: ignore[index]
        plain = type(norm) is nn.BatchNorm2d and norm.training and norm.momentum is not None
        several = x.shape[0] * x.shape[2] * x.shape[3] > 4  # pixels of the output, more than one
        return first if self.fused else plain and several and (first or index > 0)

    def _stage_on_kernels(self, x: Tensor, index: int) -> Tensor:
        """Convolution, BatchNorm and GELU, by kernels: of the first stage all, of others the latter two."""
        from cbsa.ops.fused_batch_norm import batch_norm_gelu
        from cbsa.ops.fused_stem import first_stage, first_stage_in_training

        dtype = autocast_dtype(x.device) or x.dtype
        if self.fused:
            return first_stage(x, *self._folded(index), dtype)
        conv: Any = self.proj[index][0]  # type: ignore[index]
        norm: Any = self.proj[index][1]  # type: ignore[index]
        if index == 0:
            out, mean, var = first_stage_in_training(x, conv.weight, norm.weight, norm.bias, norm.eps, dtype)
        else:
            out, mean, var = batch_norm_gelu(conv(x), norm.weight, norm.bias, norm.eps)
        with torch.no_grad():
            count = out.numel() // out.shape[1]
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
            norm.running_var.lerp_((var * (count / (count - 1))).to(norm.running_var.dtype), norm.momentum)
        return out
