"""The linear stem of the original CRATE."""

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_images, check_int


class LinearStem(nn.Module):
    """Cut the image into patches and embed each by a linear map between two LayerNorms.

    A side of n pixels gives ⌈n / patch_size⌉ patches; what the last ones lack is filled with zeros, on the
    right and at the bottom. Pixels of a patch are ordered row, column, channel, as in CRATE's checkpoints.

    Args:
        dim: width of the tokens.
        patch_size: side of a patch in pixels.
        in_chans: channels of the image.
    """

    def __init__(self, dim: int, *, patch_size: int = 16, in_chans: int = 3) -> None:
        super().__init__()
        check_int("dim", dim)
        self.patch_size = check_int("patch_size", patch_size)
        self.in_chans = check_int("in_chans", in_chans)
        pixels = in_chans * patch_size**2
        self.norm_pixels = nn.LayerNorm(pixels)
        self.proj = nn.Linear(pixels, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (B, in_chans, height, width) as a map of patches (B, dim, h, w)."""
        check_images(images, self.in_chans)
        p = self.patch_size
        batch, channels, height, width = images.shape
        h, w = -(-height // p), -(-width // p)
        images = F.pad(images, (0, w * p - width, 0, h * p - height))
        patches = images.reshape(batch, channels, h, p, w, p).permute(0, 2, 4, 3, 5, 1)  # (B, h, w, p, p, c)
        tokens: Tensor = self.norm(self.proj(self.norm_pixels(patches.reshape(batch, h, w, -1))))
        return tokens.permute(0, 3, 1, 2)
