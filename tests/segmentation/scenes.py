"""A tiny data set of coloured rectangles with their masks, in the layouts that the openers read."""

import numpy as np
from PIL import Image

CLASSES = ("ground", "red", "green")
COLOURS = np.array([(90, 90, 110), (220, 40, 30), (40, 200, 60)], dtype=np.uint8)


def scene(seed, height=24, width=32):
    """An image of a few rectangles with some noise, and its classes; the first rows are ignored."""
    draw = np.random.default_rng(seed)
    mask = np.zeros((height, width), dtype=np.uint8)
    for _ in range(3):
        top, left = draw.integers(0, height - 6), draw.integers(0, width - 6)
        mask[top : top + draw.integers(5, 12), left : left + draw.integers(5, 12)] = draw.integers(1, 3)
    image = np.clip(COLOURS[mask].astype(int) + draw.integers(-20, 21, (height, width, 3)), 0, 255)
    mask[:2] = 255
    return image.astype(np.uint8), mask


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_folder(root, train=12, val=5, size=(24, 32), masks="masks"):
    """A plain folder: ``images/SPLIT``, ``masks/SPLIT`` and ``classes.txt``."""
    for split, count, first in (("train", train, 0), ("val", val, 1000)):
        for i in range(count):
            image, mask = scene(first + i, *size)
            save(root / "images" / split / f"{i:03d}.png", image)
            save(root / masks / split / f"{i:03d}.png", mask)
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return root


# Data set: folders of its masks and lists, and its usual splits.
LISTED = {
    "voc": ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation", "train", "val"),
    "pascal_context": (
        *("JPEGImages", "SegmentationClassContext", "ImageSets/SegmentationContext"),
        *("train", "val"),
    ),
    "pets": ("images", "annotations/trimaps", "annotations", "trainval", "test"),
}


def write_listed(root, dataset):
    """A set whose splits are lists of names, with labels from 1 to 3; each list's second name has no mask.

    Returns its folder, and the masks that are not there by their images.
    """
    images, masks, lists, *splits = LISTED[dataset]
    lacking = {}
    for split, count in zip(splits, (5, 3), strict=True):
        names = [f"{split}_{i}" for i in range(count)]
        for i, name in enumerate(names):
            image, mask = scene(i)
            save(root / images / f"{name}.jpg", image)
            save(root / masks / f"{name}.png", np.where(mask == 255, 1, mask + 1).astype(np.uint8))
        lacking[root / images / f"{names[1]}.jpg"] = root / masks / f"{names[1]}.png"
        (root / masks / f"{names[1]}.png").unlink()
        (root / lists).mkdir(parents=True, exist_ok=True)
        (root / lists / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
    return root, lacking
