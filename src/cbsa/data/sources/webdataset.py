"""Images in tar shards, as the webdataset library writes them.

webdataset itself streams shards through a shuffle buffer. Here the shards are indexed once and images are
read by their offset, since a buffer gives neither an exact permutation, nor the same batches for any number
of workers and ranks, nor a cheap resume in mid-epoch. The price is that shards are local, uncompressed files.
"""

import json
import os
import re
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cbsa.data.config import DataConfig
from cbsa.data.decode import EXTENSIONS, check_encoded_size, decode_image
from cbsa.data.source import ImageSource, Labels, check_labels
from cbsa.data.sources.splits import TRAIN_SPLITS, VAL_SPLITS, choose_split

MAX_SHARDS = 100_000  # that a brace pattern may stand for
_MAX_LABEL_BYTES = 1 << 20


class _Sample(NamedTuple):
    key: str
    offset: int
    size: int
    label: int


class WebDatasetSource(ImageSource):
    """Samples ``KEY.jpg`` + ``KEY.cls`` (or ``KEY.json`` with ``"label"``) of tar files.

    Args:
        shards: the tar files of one split, in order.
        num_classes: number of classes; by default the largest label + 1. The format has no class names.
    """

    def __init__(self, shards: Sequence[Path], num_classes: int | None = None) -> None:
        self.shards = list(shards)
        indexed = [_index(shard) for shard in self.shards]
        samples = [sample for shard in indexed for sample in shard]
        self._shard = np.repeat(np.arange(len(indexed)), [len(shard) for shard in indexed])
        self._offset = np.array([sample.offset for sample in samples], dtype=np.int64)
        self._size = np.array([sample.size for sample in samples], dtype=np.int64)
        self._key = np.array([os.fsencode(sample.key) for sample in samples])
        self.labels: Labels = np.array([sample.label for sample in samples], dtype=np.int64)
        if num_classes is None:
            num_classes = int(self.labels.max(initial=-1)) + 1
        self.classes = [str(label) for label in range(num_classes)]
        check_labels(self.labels, self.classes, str(self.shards[0]))

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Read and decode a member of a shard.

        The shard is opened for each read: no limit on open files, and nothing shared between processes.
        """
        check_encoded_size(int(self._size[index]))
        with open(self.shards[self._shard[index]], "rb") as file:
            file.seek(int(self._offset[index]))
            return decode_image(file.read(int(self._size[index]))), int(self.labels[index])

    def identify(self, index: int) -> str:
        """Return the shard and the key of a sample."""
        return f"{self.shards[self._shard[index]]}:{os.fsdecode(bytes(self._key[index]))}"


def open_webdataset(config: DataConfig, train: bool) -> ImageSource:
    """Open the shards of ``config.root``: a folder, a glob or a brace pattern ``n-{000000..000009}.tar``.

    A shard belongs to a split if that is the name of its folder or a part of its own name, as in
    ``train-000000.tar``. Shards that name no split at all are for training (with ``data.holdout``).
    """
    splits = _group_by_split(find_shards(config.root or ""), (config.train_split, config.val_split))
    if train and "" in splits and len(splits) == 1 and not config.train_split:
        return WebDatasetSource(splits[""])
    shards = splits[choose_split(config, train, splits.keys() - {""})]
    if train:
        return WebDatasetSource(shards)
    try:
        training = splits[choose_split(config, True, splits.keys() - {""})]
    except FileNotFoundError:
        return WebDatasetSource(shards)
    largest = max(sample.label for shard in training for sample in _index(shard))
    return WebDatasetSource(shards, largest + 1)


def find_shards(root: str) -> list[Path]:
    """Return the tar files of a folder and its sub-folders, of a glob or of a brace pattern."""
    if not root:
        raise ValueError("data.root is empty: give the folder or pattern of the .tar shards")
    if "://" in root or root.startswith("pipe:"):
        raise ValueError(
            f"data.root={root!r}: URLs and pipes are not read; copy the shards to a local folder"
        )
    root = os.path.expanduser(root)
    if os.path.isdir(root):
        shards = sorted(Path(root).glob("*.tar")) + sorted(Path(root).glob("*/*.tar"))
    else:
        shards = []
        for pattern in _expand_braces(root):
            found = sorted(glob(pattern))
            if not found:
                raise FileNotFoundError(f"data.root={root!r}: there is no {pattern}")
            shards += [Path(path) for path in found]
    if not shards:
        raise FileNotFoundError(f"data.root={root!r} holds no .tar shard")
    return shards


def _expand_braces(pattern: str) -> list[str]:
    """Expand ``{000000..000009}`` and ``{a,b}`` as a shell does."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if bounds is None:
        choices = found[1].split(",")
    else:
        first, last = int(bounds[1]), int(bounds[2])
        if not 0 <= last - first < MAX_SHARDS:
            raise ValueError(f"data.root: {found[0]} must rise, over at most {MAX_SHARDS} shards")
        choices = [f"{number:0{len(bounds[1])}d}" for number in range(first, last + 1)]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [path for choice in choices for path in _expand_braces(head + choice + tail)]


def _group_by_split(shards: list[Path], named: Sequence[str]) -> dict[str, list[Path]]:
    known = {*TRAIN_SPLITS, *VAL_SPLITS, *named} - {""}
    splits: dict[str, list[Path]] = {}
    for shard in shards:
        parts = [*re.split(r"[-_.]", shard.stem), shard.parent.name]
        splits.setdefault(next((part for part in parts if part in known), ""), []).append(shard)
    return splits


def _index(shard: Path) -> tuple[_Sample, ...]:
    """Return the samples of a shard; remembered, since the training shards also tell the classes."""
    status = shard.stat()
    return _index_version(shard, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _index_version(shard: Path, size: int, changed: int) -> tuple[_Sample, ...]:
    images: dict[str, tuple[int, int]] = {}
    labelled: dict[str, tarfile.TarInfo] = {}
    end = 0
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
                folder, _, name = member.name.rpartition("/")
                key, _, extension = name.partition(".")
                key = f"{folder}/{key}" if folder else key
                if f".{extension}".lower() in EXTENSIONS:
                    if key in images:
                        raise ValueError(f"{shard}: the sample {key!r} has two images")
                    images[key] = (member.offset_data, member.size)
                elif extension == "cls" or (extension == "json" and key not in labelled):
                    labelled[key] = member
            labels = {key: _read_label(tar, labelled[key], shard) for key in images if key in labelled}
    except tarfile.TarError as error:
        raise ValueError(f"{shard} is truncated or not an uncompressed tar file ({error})") from error
    with open(shard, "rb") as file:
        file.seek(end)
        if file.read(512) != bytes(512):
            raise ValueError(f"{shard} is truncated or damaged: tar's end mark is missing at byte {end}")
    if unlabelled := images.keys() - labels.keys():
        raise ValueError(
            f"{shard}: {len(unlabelled)} samples have neither .cls nor .json, such as {min(unlabelled)!r}"
        )
    return tuple(_Sample(key, offset, size, labels[key]) for key, (offset, size) in images.items())


def _read_label(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    try:
        if member.size > _MAX_LABEL_BYTES:
            raise ValueError(f"{member.size} bytes")
        file = tar.extractfile(member)
        text = file.read().decode() if file is not None else ""
        return int(json.loads(text)["label"] if member.name.endswith(".json") else text)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{shard}: {member.name} does not hold an integer label ({type(error).__name__}: {error})"
        ) from error
