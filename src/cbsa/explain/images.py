"""Images from anywhere: opened safely, turned upright, and made into what a model sees."""

import base64
import io
import os
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from cbsa.data import DataConfig, normalise
from cbsa.data.decode import FORMATS, check_encoded_size, decode_image
from cbsa.data.transforms import EvalTransform

_LOSSLESS = 96  # pixels a side up to which a picture is stored without loss
_QUALITY = 88  # of JPEG
_THUMBNAIL = 72  # pixels a side


class ImageError(ValueError):
    """A file that is not an image, or not one that can be shown; the message says what to do."""


def open_image(path: str | Path) -> Image.Image:
    """Decode an image file, upright as its EXIF orientation says.

    The file is not trusted: its format, its size and its number of pixels are checked before it is decoded.
    """
    path = Path(path)
    try:
        check_encoded_size(os.stat(path).st_size)
        image = decode_image(path.read_bytes())
        upright: Image.Image = ImageOps.exif_transpose(image)
        return upright
    except FileNotFoundError as error:
        raise ImageError(f"{path}: no such file") from error
    except (IsADirectoryError, PermissionError) as error:
        raise ImageError(f"{path} cannot be read ({error.strerror}): give an image file") from error
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{path} is not an image of a known kind: give one of {', '.join(FORMATS)}"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = round((Image.MAX_IMAGE_PIXELS or 0) / 1e6)
        raise ImageError(f"{path} has more than {limit} million pixels: make it smaller first") from error
    except Exception as error:  # a file from outside may break its decoder in any way
        raise ImageError(f"{path} is damaged or truncated, and was not read ({error})") from error


def see(image: Image.Image, data: DataConfig, name: str) -> tuple[Image.Image, Tensor]:
    """What a model sees of an image: its picture, and the normalised pixels (1, C, S, S).

    Args:
        image: of any mode and size.
        data: size, channels, way of resizing and normalisation.
        name: what to call the image in errors.
    """
    try:
        pixels = EvalTransform(data)(image)
    except ValueError as error:
        raise ImageError(f"{name}: {error}") from error
    array: Any = pixels.permute(1, 2, 0).squeeze(-1).numpy()
    return Image.fromarray(array), normalise(pixels, data.mean, data.std)[None].to(torch.float32)


def data_uri(picture: Image.Image) -> str:
    """A picture as a ``data:`` address, without loss if it is small."""
    stream = io.BytesIO()
    if max(picture.size) <= _LOSSLESS:
        picture.save(stream, "PNG", optimize=True)
        kind = "png"
    else:
        picture.save(stream, "JPEG", quality=_QUALITY)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def thumbnail(picture: Image.Image) -> str:
    """A small version of a picture as a ``data:`` address."""
    small = picture.copy()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return data_uri(small)
