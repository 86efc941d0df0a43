"""Pascal-Context's own label files made into masks, in the folders that its opener reads.

They come as ``trainval.tar.gz``: a MATLAB file for each image of VOC 2010's train and val, whose ``LabelMap``
has one of 459 classes at every pixel, or 0. The usual 59 of them are kept, the others become background.
Files are untrusted: they are read without running anything in them, and sizes are limited.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from cbsa._files import write_atomically, write_text_atomically
from cbsa.data.decode import check_encoded_size
from cbsa.data.label_names import PASCAL_CONTEXT
from cbsa.data.label_sets import Mask
from cbsa.data.sources.masks import list_names

SPLITS = ("train", "val")
_MOST_LABELS = 459
# What each of the 59 classes is among the 459; both are in alphabetical order.
_IDS = (
    *(2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113, 115, 144),
    *(158, 159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326, 347, 349, 354),
    *(355, 360, 366, 368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458),
)
_CLASSES = np.zeros(_MOST_LABELS + 1, dtype=np.uint8)  # 0 for background
_CLASSES[list(_IDS)] = np.arange(1, len(PASCAL_CONTEXT) + 1)


def convert_pascal_context(
    labels: Path, voc: Path, progress: Callable[[int, int], object] = lambda done, total: None
) -> dict[str, int]:
    """Write ``SegmentationClassContext`` and ``ImageSets/SegmentationContext`` into the folder of VOC 2010.

    The splits are those of VOC's ``ImageSets/Main``. A list is written when all of its masks are there, so
    that a conversion which was interrupted is not taken for a whole one.

    Args:
        labels: folder with ``NAME.mat`` of each image, or one with ``trainval/`` in it.
        voc: folder of VOC 2010, with ``JPEGImages`` and ``ImageSets/Main``.
        progress: called after each image with how many are done and how many there are.

    Returns:
        Images of each split.
    """
    if not (voc / "JPEGImages").is_dir():
        raise FileNotFoundError(f"{voc} has no JPEGImages/: give the folder of VOC2010")
    folder = labels / "trainval" if (labels / "trainval").is_dir() else labels
    names = {split: list_names(voc / "ImageSets" / "Main", split) for split in SPLITS}
    everything = [name for split in SPLITS for name in names[split]]
    lacking = [name for name in everything if not (folder / f"{name}.mat").is_file()]
    if lacking:
        raise FileNotFoundError(
            f"{len(lacking)} of {len(everything)} images have no label file in {folder}, such as "
            f"{lacking[0]}.mat: give the folder that trainval.tar.gz of Pascal-Context unpacks to"
        )
    done = 0
    for split in SPLITS:
        for name in names[split]:
            mask = Image.fromarray(read_label_map(folder / f"{name}.mat"))
            target = voc / "SegmentationClassContext" / f"{name}.png"
            write_atomically(target, lambda file, mask=mask: mask.save(file, format="PNG"))  # type: ignore[misc]
            done += 1
            progress(done, len(everything))
        listed = "".join(f"{name}\n" for name in names[split])
        write_text_atomically(voc / "ImageSets" / "SegmentationContext" / f"{split}.txt", listed)
    return {split: len(names[split]) for split in SPLITS}


def read_label_map(path: Path) -> Mask:
    """Read a label file: (height, width), 1 to 59 for the classes, 0 for the rest."""
    from scipy.io import loadmat, whosmat  # type: ignore[import-untyped]

    check_encoded_size(path.stat().st_size)
    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        pixels = math.prod(shapes["LabelMap"])
        if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"{pixels:,} pixels are more than the limit of {Image.MAX_IMAGE_PIXELS:,}")
        ids = np.asarray(loadmat(path, variable_names=["LabelMap"])["LabelMap"])
    except Exception as error:  # a file from outside may break its reader in any way
        raise ValueError(f"{path} is not a label file of Pascal-Context with a LabelMap ({error})") from error
    if ids.ndim != 2 or ids.dtype.kind not in "ui" or ids.size == 0:
        raise ValueError(f"{path}: LabelMap must be integers (height, width), got {ids.dtype} of {ids.shape}")
    if ids.min() < 0 or ids.max() > _MOST_LABELS:
        raise ValueError(
            f"{path}: LabelMap has labels from {ids.min()} to {ids.max()}, expected 0 to {_MOST_LABELS}"
        )
    mask: Mask = _CLASSES[ids]
    return mask
