"""Images in files, one folder a class."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from cbsa.data.config import DataConfig
from cbsa.data.decode import EXTENSIONS, check_encoded_size, decode_image
from cbsa.data.source import ImageSource, Labels, check_labels
from cbsa.data.sources.listing import image_files
from cbsa.data.sources.splits import choose_split, find_root

_MOST_NAMED = 5  # class folders that an error lists


class FileSource(ImageSource):
    """Image files below a folder.

    Args:
        root: folder that the paths are relative to.
        paths: relative paths; kept as one array of bytes, which worker processes share.
        labels: (n,) classes.
        classes: class names.
    """

    def __init__(self, root: Path, paths: Sequence[str], labels: Labels, classes: Sequence[str]) -> None:
        check_labels(labels, classes, str(root))
        self.root, self.labels, self.classes = os.fsencode(root), labels, classes
        self._paths = np.array([os.fsencode(path) for path in paths])

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Read and decode a file."""
        with open(self._path(index), "rb") as file:
            check_encoded_size(os.fstat(file.fileno()).st_size)
            return decode_image(file.read()), int(self.labels[index])

    def identify(self, index: int) -> str:
        """Return the path of a file."""
        return os.fsdecode(self._path(index))

    def _path(self, index: int) -> bytes:
        return os.path.join(self.root, bytes(self._paths[index]))


def open_folder(config: DataConfig, train: bool) -> ImageSource:
    """Open ``root/SPLIT/CLASS/….jpg``, images and classes in torchvision's ``ImageFolder`` order.

    ImageNet, unpacked, has this layout too; its classes are then named by their WordNet ids.
    """
    root = find_root(config)
    splits = {entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")}
    split = choose_split(config, train, splits)
    classes = _list_classes(root / split)
    try:
        other = choose_split(config, not train, splits)
    except FileNotFoundError:  # only one split is there, which is enough to train or to evaluate
        other = split
    _check_same_classes(root, split, classes, other)
    paths, labels = [], []
    for label, name in enumerate(classes):
        found = [os.path.join(name, path) for path in image_files(root / split / name)]
        if not found:
            raise ValueError(f"{root / split / name} holds no image ({', '.join(EXTENSIONS)})")
        paths += found
        labels += [label] * len(found)
    return FileSource(root / split, paths, np.array(labels, dtype=np.int64), classes)


def _list_classes(folder: Path) -> list[str]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"{folder} has no class folders: expected {folder}/CLASS/….jpg")
    return classes


def _check_same_classes(root: Path, split: str, classes: list[str], other: str) -> None:
    others = _list_classes(root / other)
    if classes == others:
        return
    only = [
        f"only in {name!r}: {', '.join(few[:_MOST_NAMED])}{', …' if len(few) > _MOST_NAMED else ''}"
        for name, few in (
            (split, sorted(set(classes) - set(others))),
            (other, sorted(set(others) - set(classes))),
        )
        if few
    ]
    raise ValueError(f"{root}: the splits {split!r} and {other!r} differ in their classes; {'; '.join(only)}")
