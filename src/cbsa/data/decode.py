"""Encoded images to pixels. The bytes are untrusted: formats, sizes and truncation are checked."""

import io
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
MAX_BYTES = 256 << 20  # of one encoded image


def decode_image(data: bytes) -> Image.Image:
    """Decode one image wholly; raise if it is truncated, of a format not in ``FORMATS`` or too large.

    An image above Pillow's limit on pixels, which Pillow itself only warns of, is an error here.
    """
    if not data:
        raise ValueError("the file is empty")
    check_encoded_size(len(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:  # its own message names an address in memory
            raise UnidentifiedImageError(
                f"cannot identify the image: expected one of {', '.join(FORMATS)}"
            ) from None
        image.load()
    return image


def check_encoded_size(size: int) -> None:
    """Raise if an encoded image has more than ``MAX_BYTES`` bytes, before it is read."""
    if size > MAX_BYTES:
        raise ValueError(f"the image has {size} bytes, more than the limit of {MAX_BYTES}")


def to_channels(image: Image.Image, in_chans: int) -> Image.Image:
    """Return an image of any mode as RGB (``in_chans=3``) or grey (1), 8 bits a channel.

    Alpha is dropped. 16-bit greys are scaled, since Pillow's own conversion may cut them off at 255.
    """
    mode = "RGB" if in_chans == 3 else "L"
    if image.mode == mode:
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.float64) / 257  # 65535 → 255
        if grey.min() < 0 or grey.max() > 255:
            raise ValueError("the pixels of this integer image do not fit into 16 bits")
        image = Image.fromarray(grey.round().astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("the image has floating-point pixels of unknown range: convert it to 8 or 16 bits")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # keeps Pillow from warning of transparency in the palette
    return image.convert(mode)
