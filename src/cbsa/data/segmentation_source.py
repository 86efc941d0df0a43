"""Data sets for semantic segmentation, each opened by its name: images with classes per pixel."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from cbsa._checks import check_int
from cbsa.data import label_sets
from cbsa.data.label_sets import LabelSet, Mask
from cbsa.data.mask_config import MASK_DATASETS, MaskDataConfig
from cbsa.data.sources.mask_files import (
    open_ade20k,
    open_cityscapes,
    open_mask_folder,
    open_pascal_context,
    read_class_names,
)
from cbsa.data.sources.masks import MaskSource, check_split, open_camvid, open_pets_trimaps, open_voc
from cbsa.data.sources.splits import find_root

# Data set: how it is opened, its usual splits for training and for evaluation.
_OPENERS: dict[str, tuple[Callable[[Path, str], MaskSource], str, str]] = {
    "ade20k": (open_ade20k, "training", "validation"),
    "cityscapes": (open_cityscapes, "train", "val"),
    "pascal_context": (open_pascal_context, "train", "val"),
    "pascal_context_60": (open_pascal_context, "train", "val"),
    "voc": (open_voc, "train", "val"),
    "camvid": (open_camvid, "train", "val"),
    "pets": (open_pets_trimaps, "trainval", "test"),
    "folder": (open_mask_folder, "train", "val"),
}
assert tuple(_OPENERS) == MASK_DATASETS

_LABELS = {
    "ade20k": label_sets.ADE20K,
    "cityscapes": label_sets.CITYSCAPES,
    "pascal_context": label_sets.PASCAL_CONTEXT,
    "pascal_context_60": label_sets.PASCAL_CONTEXT_60,
    "voc": label_sets.VOC,
    "camvid": label_sets.CAMVID,
    "pets": label_sets.PETS,
}


class SegmentationSource:
    """The images of one split by position, each with the classes of its pixels.

    Sources are pickled to worker processes and read there.

    Args:
        masks: images and masks as they lie on disk.
        labels: what the masks' integers mean.
        positions: which of them; by default all.
    """

    def __init__(self, masks: MaskSource, labels: LabelSet, positions: Sequence[int] | None = None) -> None:
        self.masks, self.labels = masks, labels
        self.positions = range(len(masks)) if positions is None else positions

    def __len__(self) -> int:
        return len(self.positions)

    def evenly_spaced(self, count: int) -> "SegmentationSource":
        """So many of the images, or all if there are no more."""
        count = min(check_int("count", count), len(self))
        chosen = [self.positions[i * len(self) // count] for i in range(count)]
        return SegmentationSource(self.masks, self.labels, chosen)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return self.labels.classes

    def read(self, index: int) -> tuple[Image.Image, Mask]:
        """Return the decoded image, of any mode, and its classes (height, width), 255 for ignored pixels.

        Raises if either cannot be read, if their sizes differ, or at a label that is none.
        """
        image, mask = self.masks.read(self.positions[index])
        return image, self.labels.encode(mask)

    def identify(self, index: int) -> str:
        """Return the path or name of an image, for messages."""
        return self.masks.identify(self.positions[index])


def open_segmentation(config: MaskDataConfig, train: bool) -> SegmentationSource:
    """Open a split of a data set: what to train on, or what to evaluate on."""
    root = find_root(config)
    masks = _OPENERS[config.dataset][0](root, check_split(split_of(config, train)))
    labels = labels_of(config)
    if masks.labels == "cityscapes_train_ids":
        labels = label_sets.CITYSCAPES_TRAIN_IDS
    return SegmentationSource(masks, labels or _folder_labels(root, config.ignore_label))


def split_of(config: MaskDataConfig, train: bool) -> str:
    """Name of the split to train on, or to evaluate on: the usual one unless another is given."""
    _, usual_train, usual_val = _OPENERS[config.dataset]
    return (config.train_split or usual_train) if train else (config.val_split or usual_val)


def labels_of(config: MaskDataConfig) -> LabelSet | None:
    """What the labels of a data set mean; None for plain folders, which say so themselves."""
    return _LABELS.get(config.dataset)


def _folder_labels(root: Path, ignore: int) -> LabelSet:
    names = read_class_names(root)
    if not names or len(names) > 254:
        raise ValueError(f"{root / 'classes.txt'} names {len(names)} classes, expected 1 to 254")
    if ignore < len(names):
        raise ValueError(
            f"data.ignore_label={ignore} is the label of class {names[ignore]!r}, one of {len(names)} from 0 "
            "on: choose another"
        )
    return LabelSet(names, tuple(range(len(names))), (ignore,))
