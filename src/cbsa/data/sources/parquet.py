"""Images in Parquet files, as the Hugging Face hub keeps them."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cbsa.data.config import DataConfig
from cbsa.data.decode import check_encoded_size, decode_image
from cbsa.data.source import ImageSource, Labels, check_labels
from cbsa.data.sources.splits import choose_split, find_root

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


class ParquetSource(ImageSource):
    """Encoded images in a column of Parquet files.

    Parquet is compressed by row groups, so single images cannot be read from the file: the encoded bytes are
    held in memory as Arrow arrays. Forked workers share them, spawned ones read the files again. For a set
    larger than memory use ``"folder"`` or ``"webdataset"``.

    Args:
        files: the files of one split, in order.
        classes: class names; by default those of the files (:func:`read_classes`).
    """

    def __init__(self, files: Sequence[Path], classes: Sequence[str] | None = None) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self.files = list(files)
        self._chunks: list[Any] = []  # of encoded images
        owners, labels = [], []
        for file in self.files:
            image, label = _columns(file)
            table = pq.read_table(file, columns=[image, label], memory_map=True)
            for chunk in table.column(image).chunks:
                self._chunks.append(chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk)
                owners.append(file.name)
            labels.append(_labels(table.column(label), file))
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._chunks])
        self._owners = owners
        self.labels = np.concatenate(labels)
        self.classes = read_classes(self.files) if classes is None else classes
        check_labels(self.labels, self.classes, f"{self.files[0].parent}: {self.files[0].name}")

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Decode the image of a row."""
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        data = self._chunks[chunk][int(index - self._starts[chunk])].as_buffer()
        if data is None:
            raise ValueError("the row has no bytes (images by path are not supported)")
        check_encoded_size(data.size)
        return decode_image(data.to_pybytes()), int(self.labels[index])

    def identify(self, index: int) -> str:
        """Name a row by the split's file and its position in the split."""
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._owners[chunk]}[{index}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetSource, (self.files, self.classes)


def open_parquet(config: DataConfig, train: bool) -> ImageSource:
    """Open ``root/SPLIT.parquet`` or ``root/SPLIT-….parquet`` (or the same in ``root/data``).

    Classes are those of the training split, where there is one.
    """
    splits = find_files(find_root(config))
    files = splits[choose_split(config, train, splits)]
    if train:
        return ParquetSource(files)
    try:
        classes = read_classes(splits[choose_split(config, True, splits)])
    except FileNotFoundError:
        return ParquetSource(files)
    named = _named_classes(files[0])
    if named is not None and list(named) != list(classes):
        raise ValueError(f"{files[0]}: its class names differ from those of the training split")
    return ParquetSource(files, classes)


def read_classes(files: Sequence[Path]) -> Sequence[str]:
    """Return the class names in the schema's metadata, else numbers up to the largest label."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    names = _named_classes(files[0])
    if names is not None:
        return names
    largest = -1
    for file in files:
        column = _columns(file)[1]
        labels = _labels(pq.read_table(file, columns=[column]).column(column), file)
        largest = max(largest, int(labels.max(initial=-1)))
    return [str(label) for label in range(largest + 1)]


def find_files(root: Path) -> dict[str, list[Path]]:
    """Return the files of each split; raise if one of ``SPLIT-00000-of-00005`` is missing."""
    splits: dict[str, list[Path]] = defaultdict(list)
    expected = {}
    for file in sorted(root.glob("*.parquet")) or sorted((root / "data").glob("*.parquet")):
        split = file.stem.split("-")[0]
        splits[split].append(file)
        if numbers := re.fullmatch(r".*-(\d+)-of-(\d+)(-\w+)?", file.stem):
            expected[split] = int(numbers[2])
    for split, count in expected.items():
        if len(splits[split]) != count:
            raise FileNotFoundError(f"{root}: {len(splits[split])} of {count} files of {split!r} are there")
    return splits


def _columns(file: Path) -> tuple[str, str]:
    """Return the names of the image column and of the label column."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        names = pq.read_schema(file).names
    except Exception as error:  # a file from outside may break its reader in any way
        raise ValueError(f"{file} is truncated or not a Parquet file ({error})") from error
    found = [
        next((name for name in wanted if name in names), None) for wanted in (IMAGE_COLUMNS, LABEL_COLUMNS)
    ]
    if found[0] is None or found[1] is None:
        raise ValueError(
            f"{file} has the columns {', '.join(names)}; expected one of {', '.join(IMAGE_COLUMNS)} and "
            f"one of {', '.join(LABEL_COLUMNS)}"
        )
    return found[0], found[1]


def _labels(column: Any, file: Path) -> Labels:
    if column.null_count:
        raise ValueError(f"{file}: {column.null_count} rows have no label")
    labels: Labels = column.to_numpy().astype(np.int64)
    return labels


def _named_classes(file: Path) -> Sequence[str] | None:
    """Return the class names that ``datasets`` wrote into the schema, if it did."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    label = _columns(file)[1]
    try:
        features = json.loads((pq.read_schema(file).metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    if isinstance(names, dict):  # {"0": "cat", …} in older files
        names = [names[str(label)] for label in range(len(names))]
    return [str(name) for name in names]
