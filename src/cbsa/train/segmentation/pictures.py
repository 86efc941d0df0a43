"""Label maps as files: index PNGs with a palette, and colours laid over the image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from cbsa.data import MaskDataConfig
from cbsa.data.label_sets import Colours, voc_colours
from cbsa.data.segmentation_source import labels_of
from cbsa.data.sources.mask_files import read_class_names


def colours_of(data: MaskDataConfig, num_classes: int) -> Colours:
    """Colours of a data set's classes; VOC's where it has none of its own."""
    labels = labels_of(data)
    return (
        labels.colours
        if labels is not None and len(labels.classes) == num_classes
        else voc_colours(num_classes)
    )


def index_image(labels: npt.NDArray[np.uint8], colours: Sequence[tuple[int, int, int]]) -> Image.Image:
    """A palette image whose pixels are classes from 0, (h, w)."""
    height, width = labels.shape
    image = Image.frombytes("P", (width, height), labels.tobytes())
    image.putpalette([channel for colour in colours for channel in colour])
    return image


def overlay(
    image: Image.Image,
    labels: npt.NDArray[np.uint8],
    colours: Sequence[tuple[int, int, int]],
    opacity: float = 0.5,
) -> Image.Image:
    """The image in RGB with the colours of its classes laid over it."""
    table = np.array(colours, dtype=np.uint8)
    return Image.blend(image, Image.fromarray(table[labels]), opacity)


def names_of(data: MaskDataConfig, num_classes: int) -> list[str]:
    """Names of a data set's classes; numbers where they are not known."""
    labels = labels_of(data)
    if labels is not None and len(labels.classes) == num_classes:
        return list(labels.classes)
    try:
        names = read_class_names(Path(data.root or "").expanduser())
    except (OSError, ValueError):
        names = ()
    return list(names) if len(names) == num_classes else [f"class {i}" for i in range(num_classes)]
