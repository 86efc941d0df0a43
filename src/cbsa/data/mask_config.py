"""What to read for semantic segmentation and how to augment it."""

from dataclasses import dataclass

from cbsa._checks import check_choice, check_int, check_number
from cbsa.data.config import STORES

MASK_DATASETS = (
    "ade20k",
    "cityscapes",
    "pascal_context",
    "pascal_context_60",
    "voc",
    "camvid",
    "pets",
    "folder",
)
"""The data sets of images with masks: what ``data.dataset`` of a segmenter may be."""


@dataclass(frozen=True)
class MaskDataConfig:
    """A data set of images with masks, its splits and the size of its images.

    Attributes:
        dataset: one of :data:`MASK_DATASETS`.
        root: folder of the data set.
        train_split: name of the training split, as the data set calls it; empty for the usual one.
        val_split: name of the split to evaluate on; empty for the usual one.
        ignore_label: of ``"folder"``, the masks' integer for pixels that count for nothing.
        short_side: shorter side that images are resized to before all else, in training and evaluation; 0
            leaves them as they are. Scores are always taken at the size of the mask.
        crop: height and width of the images the model is trained on.
        mean: per-channel mean to subtract, of values in [0, 1]; None for what the model expects. A run fills
            it in when it starts, and stores it.
        std: per-channel standard deviation to divide by, or None likewise.
        store: ``"device"`` keeps the decoded images and masks as bytes on the training device and augments
            them there, ``"host"`` decodes and augments in worker processes, ``"auto"`` takes the device for a
            GPU if all of them take at most 16 GiB and a quarter of its free memory.
        workers: processes that decode images, at most one a core; batches do not depend on their number.
        max_corrupt: images that cannot be read, or whose masks are wrong, that are reported and skipped
            before the run is stopped.
    """

    dataset: str = "folder"
    root: str | None = None
    train_split: str = ""
    val_split: str = ""
    ignore_label: int = 255
    short_side: int = 0
    crop: tuple[int, int] = (512, 512)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    store: str = "auto"
    workers: int = 8
    max_corrupt: int = 10

    def __post_init__(self) -> None:
        check_choice("data.dataset", self.dataset, MASK_DATASETS)
        check_choice("data.store", self.store, STORES)
        check_int("data.short_side", self.short_side, at_least=0)
        check_int("data.workers", self.workers, at_least=0)
        check_int("data.max_corrupt", self.max_corrupt, at_least=0)
        if not 0 <= check_int("data.ignore_label", self.ignore_label, at_least=0) <= 255:
            raise ValueError(f"data.ignore_label must be 0 to 255, got {self.ignore_label}")
        if len(self.crop) != 2:
            raise ValueError(f"data.crop must be two integers, height and width, got {self.crop}")
        for side in self.crop:
            check_int("data.crop", side)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if len(values) != 3:
                raise ValueError(
                    f"data.{name} must have 3 values, for red, green and blue, got {len(values)}"
                )
            for value in values:
                check_number(f"data.{name}", value)
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"data.std must be above 0, got {self.std}")

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation; raises if they are still to be taken from the model."""
        if self.mean is None or self.std is None:
            raise ValueError(
                "data.mean and data.std are None, to be taken from the model: fill them in by "
                "cbsa.train.segmentation.trained.settle_for, or give them"
            )
        return self.mean, self.std


@dataclass(frozen=True)
class MaskAugmentConfig:
    """Augmentation of an image together with its mask.

    Attributes:
        scale: smallest and largest factor by which both are resized.
        category_ratio: largest share of a crop's labelled pixels that one class may have; other crops are
            tried, and the last one is taken if none has less. 1 takes any crop.
        flip: probability of a horizontal flip.
        photometric: probability of each of brightness, contrast, saturation and hue to be changed.
    """

    scale: tuple[float, float] = (0.5, 2.0)
    category_ratio: float = 0.75
    flip: float = 0.5
    photometric: float = 0.5

    def __post_init__(self) -> None:
        if len(self.scale) != 2:
            raise ValueError(f"augment.scale must be two numbers, got {self.scale}")
        low, high = (check_number("augment.scale", value) for value in self.scale)
        if not 0 < low <= high:
            raise ValueError(f"augment.scale must rise from above 0, got {(low, high)}")
        if not 0 < check_number("augment.category_ratio", self.category_ratio) <= 1:
            raise ValueError(f"augment.category_ratio must be above 0, at most 1, got {self.category_ratio}")
        for name in ("flip", "photometric"):
            if not 0 <= check_number(f"augment.{name}", getattr(self, name)) <= 1:
                raise ValueError(f"augment.{name} is a probability, got {getattr(self, name)}")
