"""Small sources and files for the tests of the data package."""

import io

import numpy as np
import torch
from PIL import Image

from cbsa.data import AugmentConfig, DataConfig, ImageSource, build_eval_loader, build_train_loader

CPU = torch.device("cpu")


def pixels(seed, height=8, width=8, channels=3):
    """Random bytes (H, W, C) or (H, W)."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encode(image, form="PNG", **options):
    """The bytes of an image file."""
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, form, **options)
    return out.getvalue()


class Tiles(ImageSource):
    """Random images in memory; those in ``broken`` cannot be read, and all reads are noted."""

    def __init__(self, count, side=8, broken=(), classes=3):
        self.images = np.stack([pixels(i, side, side) for i in range(count)])
        self.labels = np.arange(count) % classes
        self.classes = [f"class {i}" for i in range(classes)]
        self.broken, self.reads = frozenset(broken), []

    def read(self, index):
        self.reads.append(index)
        if index in self.broken:
            raise OSError("broken on purpose")
        return Image.fromarray(self.images[index]), int(self.labels[index])

    def identify(self, index):
        return f"tile {index}"


def train_loader(source, *, config=None, augment=None, **options):
    """A training loader on the CPU: batches of 4, 8×8 images, no workers unless told otherwise."""
    config = DataConfig(**({"img_size": 8, "workers": 0, "store": "host"} | (config or {})))
    return build_train_loader(
        config, AugmentConfig(**(augment or {})), source, **({"batch_size": 4, "device": CPU} | options)
    )


def eval_loader(source, *, config=None, **options):
    """An evaluation loader on the CPU: batches of 4 of the 8×8 images as they are."""
    config = DataConfig(**({"img_size": 8, "workers": 0, "store": "host", "crop_pct": 1.0} | (config or {})))
    return build_eval_loader(config, source, **({"batch_size": 4, "device": CPU} | options))


def join(batches):
    """All fields of some batches, concatenated."""
    batches = list(batches)
    return {name: torch.cat([getattr(b, name) for b in batches]) for name in vars(batches[0])}


def assert_same(left, right):
    """Both are the same batches, bit for bit."""
    left, right = join(left), join(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name
