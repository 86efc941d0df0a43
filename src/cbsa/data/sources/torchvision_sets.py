"""Data sets that torchvision finds on disk, checks and downloads: CIFAR, Flowers-102, Oxford-IIIT Pets.

CIFAR's files are pickles. torchvision reads them, after comparing each with its known MD5 sum; nothing else
in this package unpickles data.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cbsa._checks import check_choice
from cbsa.data.config import DataConfig
from cbsa.data.source import ImageSource, Labels, check_labels
from cbsa.data.sources.arrays import ArraySource
from cbsa.data.sources.files import FileSource


def open_cifar(config: DataConfig, train: bool) -> ImageSource:
    """Open CIFAR-10 or CIFAR-100 (fine labels): 50,000 images to train, 10,000 to test."""
    from torchvision.datasets import CIFAR10, CIFAR100  # type: ignore[import-untyped]

    split = _split(config, train, ("train", "test"))
    kind = CIFAR10 if config.dataset == "cifar10" else CIFAR100
    data = _find(config, partial(kind, train=split == "train", download=config.download))
    labels = np.array(data.targets, dtype=np.int64)
    check_labels(labels, data.classes, f"{config.root}: {config.dataset}")
    return ArraySource(f"{config.dataset}/{split}", data.data, labels, list(data.classes))


def open_flowers(config: DataConfig, train: bool) -> ImageSource:
    """Open Flowers-102: 1,020 images to train and 6,149 to test, as the paper does.

    The split ``"trainval"`` joins ``"train"`` with the 1,020 of ``"val"``.
    """
    from torchvision.datasets import Flowers102  # type: ignore[import-untyped]

    split = _split(config, train, ("train", "test", "val", "trainval"))
    halves = ("train", "val") if split == "trainval" else (split,)
    parts = [_find(config, partial(Flowers102, split=half, download=config.download)) for half in halves]
    paths = [path for part in parts for path in part._image_files]
    labels = np.array([label for part in parts for label in part._labels], dtype=np.int64)
    return _files(parts[0]._images_folder, paths, labels, list(Flowers102.classes))


def open_pets(config: DataConfig, train: bool) -> ImageSource:
    """Open Oxford-IIIT Pets, 37 breeds: 3,680 images to train (``"trainval"``), 3,669 to test."""
    from torchvision.datasets import OxfordIIITPet  # type: ignore[import-untyped]

    split = _split(config, train, ("trainval", "test"))
    data = _find(config, partial(OxfordIIITPet, split=split, download=config.download))
    return _files(data._images_folder, data._images, np.array(data._labels, dtype=np.int64), data.classes)


def _split(config: DataConfig, train: bool, known: tuple[str, ...]) -> str:
    """Return the split to read; the first two known ones are the paper's for training and evaluation."""
    field, default = ("train_split", known[0]) if train else ("val_split", known[1])
    return check_choice(f"data.{field}", getattr(config, field) or default, known)


def _find(config: DataConfig, make: Callable[[Path], Any]) -> Any:
    """Make a torchvision data set; say where it was looked for, and how to get it, if it is not there."""
    if not config.root:
        raise ValueError(f"data.root is empty: give the folder that holds (or shall hold) {config.dataset}")
    root = Path(config.root).expanduser()
    try:
        return make(root)
    except (RuntimeError, FileNotFoundError) as error:
        found = sorted(os.listdir(root))[:12] if root.is_dir() else None
        what = "is not a folder" if found is None else f"holds {', '.join(found) or 'nothing'}"
        parquet = any(name.endswith(".parquet") for name in found or ())
        advice = "Pass data.download=true to let torchvision download it"
        if parquet:
            advice = f"Parquet files such as these are read by data.dataset=parquet. {advice}"
        raise FileNotFoundError(
            f"{config.dataset} was not found whole in data.root={config.root!r}, which {what} ({error}). "
            f"{advice}"
        ) from error


def _files(folder: Path, paths: list[Path], labels: Labels, classes: list[str]) -> FileSource:
    return FileSource(folder, [os.path.relpath(path, folder) for path in paths], labels, classes)
