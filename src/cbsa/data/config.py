"""What to read and how to augment it."""

import math
from dataclasses import dataclass

from cbsa._checks import check_below_one, check_choice, check_int, check_number, check_share

DATASETS = (
    "digits",
    "cifar10",
    "cifar100",
    "flowers102",
    "pets",
    "imagenet",
    "folder",
    "parquet",
    "webdataset",
)
"""The data sets of images with labels: what ``data.dataset`` may be."""
CROPS = ("resized", "pad", "none")
RESIZES = ("crop", "squash")
INTERPOLATIONS = ("bilinear", "bicubic")
STORES = ("auto", "host", "device")


@dataclass(frozen=True)
class DataConfig:
    """A data set, its splits and how its images are brought to one size.

    Attributes:
        dataset: one of :data:`DATASETS`; all but ``"digits"`` (embedded in scikit-learn) need ``root``.
        root: folder of the data set; for ``"webdataset"`` a folder or pattern of ``.tar`` shards.
        train_split: name of the training split, as the data set calls it; empty for the paper's choice.
        val_split: name of the split to evaluate on; empty for the paper's choice.
        holdout: share of the training split that is kept out of training and evaluated on instead of
            ``val_split``, for tuning; drawn per class, the same for every run.
        img_size: side of the square images the model sees, in pixels.
        in_chans: 3 for RGB, 1 for grey.
        mean: per-channel mean to subtract, of values in [0, 1].
        std: per-channel standard deviation to divide by.
        resize: how evaluation brings an image to ``img_size``: ``"crop"`` resizes the shorter side to
            ``img_size / crop_pct`` and takes the centre, ``"squash"`` resizes both sides.
        crop_pct: see ``resize``.
        interpolation: ``"bilinear"`` or ``"bicubic"``; a crop ``"resized"`` on the device is always bilinear.
        store: ``"device"`` keeps the decoded images as bytes on the training device and augments there,
            ``"host"`` decodes in worker processes, ``"auto"`` takes the device for a GPU if the images and
            the augmentation allow it.
        workers: processes that decode images, at most one a core; batches do not depend on their number.
        max_corrupt: unreadable images that are reported and skipped before the run is stopped.
        download: let torchvision download the data set if it is missing.
    """

    dataset: str = "digits"
    root: str | None = None
    train_split: str = ""
    val_split: str = ""
    holdout: float = 0.0
    img_size: int = 224
    in_chans: int = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    resize: str = "crop"
    crop_pct: float = 0.875
    interpolation: str = "bicubic"
    store: str = "auto"
    workers: int = 8
    max_corrupt: int = 100
    download: bool = False

    def __post_init__(self) -> None:
        check_choice("data.dataset", self.dataset, DATASETS)
        check_choice("data.resize", self.resize, RESIZES)
        check_choice("data.interpolation", self.interpolation, INTERPOLATIONS)
        check_choice("data.store", self.store, STORES)
        check_int("data.img_size", self.img_size)
        check_int("data.workers", self.workers, at_least=0)
        check_int("data.max_corrupt", self.max_corrupt, at_least=0)
        if self.in_chans not in (1, 3):
            raise ValueError(f"data.in_chans must be 1 or 3, got {self.in_chans}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.in_chans:
                raise ValueError(
                    f"data.{name} must have data.in_chans = {self.in_chans} values, got {len(values)}"
                )
            for value in values:
                check_number(f"data.{name}", value)
        if min(self.std) <= 0:
            raise ValueError(f"data.std must be above 0, got {self.std}")
        check_below_one("data.holdout", self.holdout)
        check_share("data.crop_pct", self.crop_pct)


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation of training images; the paper's is a random resized crop and a flip.

    Attributes:
        crop: ``"resized"`` (random area and aspect ratio, resized), ``"pad"`` (a window of the image padded
            by reflection) or ``"none"`` (as in evaluation).
        scale: smallest and largest share of the area, for ``"resized"``.
        ratio: smallest and largest aspect ratio, for ``"resized"``.
        padding: pixels on each side, for ``"pad"``.
        flip: probability of a horizontal flip.
        randaugment: RandAugment in timm's notation, e.g. ``"rand-m9-mstd0.5"``; empty for none.
        erase: probability of random erasing (timm's, per pixel).
        mixup: alpha of mixup; 0 for none.
        cutmix: alpha of CutMix; 0 for none.
    """

    crop: str = "resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 8
    flip: float = 0.5
    randaugment: str = ""
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        check_choice("augment.crop", self.crop, CROPS)
        check_int("augment.padding", self.padding, at_least=0)
        for name, limit in (("scale", 1.0), ("ratio", math.inf)):
            low, high = (check_number(f"augment.{name}", value) for value in getattr(self, name))
            if not 0 < low <= high <= limit:
                bound = "" if limit == math.inf else f" to at most {limit}"
                raise ValueError(f"augment.{name} must rise from above 0{bound}, got {(low, high)}")
        for name in ("flip", "erase"):
            if not 0 <= check_number(f"augment.{name}", getattr(self, name)) <= 1:
                raise ValueError(f"augment.{name} is a probability, got {getattr(self, name)}")
        for name in ("mixup", "cutmix"):
            check_number(f"augment.{name}", getattr(self, name), at_least=0)
