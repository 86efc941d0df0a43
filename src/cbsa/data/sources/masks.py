"""Images with a mask of labels per pixel: Oxford-IIIT Pets trimaps, PASCAL VOC 2012 and CamVid.

Files are untrusted: names in lists may not leave the folder, sizes are limited, nothing is unpickled.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from cbsa.data.decode import check_encoded_size, decode_image
from cbsa.data.sources.parquet import find_files

_MOST_LIST_BYTES = 16 << 20  # of a text file that lists a split
_MASK_FORMATS = ("PNG", "BMP", "TIFF", "GIF")
_BRIGHTER = {2: 85, 4: 17}  # by what Pillow multiplies greys of so many bits
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


class MaskSource(ABC):
    """The images of one split by position, each with a mask of its size.

    Attributes:
        labels: what the mask's integers mean, as :func:`cbsa.analysis.zero_shot_segmentation` names it.
    """

    labels: str

    @abstractmethod
    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Image.Image, npt.NDArray[np.uint8]]:
        """Return the decoded image, of any mode, and its mask (height, width); raise if they do not fit."""
        encoded, mask = self._bytes(index)
        image, labels = decode_image(encoded), decode_mask(mask)
        if labels.shape != (image.height, image.width):
            raise ValueError(
                f"the image has {image.width}×{image.height} pixels, "
                f"its mask {labels.shape[1]}×{labels.shape[0]}"
            )
        return image, labels

    @abstractmethod
    def identify(self, index: int) -> str:
        """Return the path or name of an image, for messages."""

    @abstractmethod
    def _bytes(self, index: int) -> tuple[bytes, bytes]:
        """Return the encoded image and mask."""


def decode_mask(data: bytes) -> npt.NDArray[np.uint8]:
    """Decode a mask (height, width): grey levels of up to 8 bits, or a palette's indices (VOC's PNGs).

    Labels are the integers that the file has: Pillow makes greys of 2 and 4 bits brighter, up to 255, which
    is undone, and formats that change them are refused.
    """
    image = decode_image(data)
    if image.format not in _MASK_FORMATS:
        raise ValueError(
            f"a mask must be of a format that keeps labels as they are ({', '.join(_MASK_FORMATS)}), got "
            f"{image.format}: make it anew from its source, as PNG"
        )
    if image.mode not in ("1", "L", "P"):
        raise ValueError(
            f"a mask must be an 8-bit grey or palette image, got mode {image.mode!r}: save the label of each "
            "pixel, from 0 to 255, as an 8-bit grey PNG"
        )
    labels = np.array(image, dtype=np.uint8)
    return labels // _BRIGHTER.get(_bits(data, image), 1) if image.mode == "L" else labels


def _bits(data: bytes, image: Image.Image) -> int:
    """Bits of a grey pixel in the file."""
    if image.format == "PNG":
        return data[24]  # behind the signature, and length, name, width and height of the header
    return int(image.tag_v2.get(258, (8,))[0]) if image.format == "TIFF" else 8  # type: ignore[attr-defined]


class FileMasks(MaskSource):
    """Images and masks in files of their own.

    Args:
        root: folder of the data set.
        images: paths of the images, relative to it.
        masks: paths of the masks, relative to it.
        labels: what the mask's integers mean.
    """

    def __init__(self, root: Path, images: Sequence[str], masks: Sequence[str], labels: str) -> None:
        self.root, self.images, self.masks, self.labels = root, list(images), list(masks), labels

    def __len__(self) -> int:
        return len(self.images)

    def identify(self, index: int) -> str:
        """Return the path of an image."""
        return str(self.root / self.images[index])

    def _bytes(self, index: int) -> tuple[bytes, bytes]:
        return _read(self.root / self.images[index]), _read(self.root / self.masks[index])


class ParquetMasks(MaskSource):
    """Columns ``image`` and ``mask`` of Parquet files, held encoded in memory.

    Args:
        files: the files of one split, in order.
        labels: what the mask's integers mean.
    """

    def __init__(self, files: Sequence[Path], labels: str) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self.files, self.labels = list(files), labels
        self._columns: list[list[Any]] = [[], []]  # encoded images and masks, in parts of equal lengths
        self._owners: list[str] = []
        for file in self.files:
            try:
                table = pq.read_table(file, columns=["image", "mask"], memory_map=True)
                parts = [[part.column(name) for name in ("image", "mask")] for part in table.to_batches()]
            except Exception as error:  # a file from outside may break its reader in any way
                raise ValueError(
                    f"{file} is not a Parquet file with the columns image and mask ({error})"
                ) from error
            self._owners += [file.name] * len(parts)
            for part in parts:
                for kept, column in zip(self._columns, part, strict=True):
                    kept.append(column.field("bytes") if pa.types.is_struct(column.type) else column)
        self._starts = np.cumsum([0] + [len(part) for part in self._columns[0]])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def identify(self, index: int) -> str:
        """Name a row by the split's file and its position in the split."""
        return f"{self._owners[self._part(index)]}[{index}]"

    def _part(self, index: int) -> int:
        return int(np.searchsorted(self._starts, index, side="right")) - 1

    def _bytes(self, index: int) -> tuple[bytes, bytes]:
        part = self._part(index)
        place = int(index - self._starts[part])
        image, mask = (self._encoded(column[part][place]) for column in self._columns)
        return image, mask

    @staticmethod
    def _encoded(value: Any) -> bytes:
        data = value.as_buffer()
        if data is None:
            raise ValueError("the row has no bytes (images by path are not supported)")
        check_encoded_size(data.size)
        return bytes(data.to_pybytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetMasks, (self.files, self.labels)


def open_pets_trimaps(root: str | Path, split: str = "test") -> MaskSource:
    """Open Oxford-IIIT Pets with its trimaps: 1 foreground, 2 background, 3 boundary.

    Args:
        root: folder with ``SPLIT.parquet`` (columns image, mask), or with the official ``images/``,
            ``annotations/trimaps/`` and ``annotations/SPLIT.txt``, itself or in ``oxford-iiit-pet/``.
        split: ``"test"`` (3,669 images) or ``"trainval"`` (3,680).
    """
    folder = _folder(root)
    for official in (folder, folder / "oxford-iiit-pet"):
        if (official / "annotations" / "trimaps").is_dir():
            names = list_names(official / "annotations", split)
            return FileMasks(
                official,
                [f"images/{name}.jpg" for name in names],
                [f"annotations/trimaps/{name}.png" for name in names],
                "pets",
            )
    return _parquet(folder, split, "pets", " and no annotations/trimaps; give the folder of Oxford-IIIT Pets")


def open_voc(root: str | Path, split: str = "val") -> MaskSource:
    """Open the segmentation part of PASCAL VOC 2012: 0 background, 1–20 classes, 255 boundary.

    Args:
        root: folder with ``JPEGImages``, ``SegmentationClass`` and ``ImageSets/Segmentation/SPLIT.txt``,
            or one above it (``VOCdevkit``, or what holds that).
        split: ``"val"`` (1,449 images), ``"train"`` or ``"trainval"``.
    """
    folder = _folder(root)
    for official in (folder, folder / "VOC2012", folder / "VOCdevkit" / "VOC2012"):
        if (official / "SegmentationClass").is_dir():
            names = list_names(official / "ImageSets" / "Segmentation", split)
            return FileMasks(
                official,
                [f"JPEGImages/{name}.jpg" for name in names],
                [f"SegmentationClass/{name}.png" for name in names],
                "voc",
            )
    raise FileNotFoundError(
        f"{folder} has no SegmentationClass/: give the folder of VOC2012, with JPEGImages, "
        "SegmentationClass and ImageSets/Segmentation in it"
    )


def open_camvid(root: str | Path, split: str = "val") -> MaskSource:
    """Open CamVid in the division of SegNet: 0–10 classes, 11 void.

    Args:
        root: folder with ``SPLIT.parquet`` (columns image, mask).
        split: ``"train"`` (367 images), ``"val"`` (101) or ``"test"`` (233).
    """
    return _parquet(_folder(root), split, "camvid", "; give the folder of CamVid")


def _parquet(folder: Path, split: str, labels: str, otherwise: str) -> ParquetMasks:
    """A split's Parquet files; the error says what to do ``otherwise``."""
    splits = find_files(folder)
    if split not in splits:
        raise FileNotFoundError(
            f"{folder} has no split {split!r}: found {', '.join(sorted(splits)) or 'no Parquet file'}"
            f"{otherwise}"
        )
    return ParquetMasks(splits[split], labels)


def _folder(root: str | Path) -> Path:
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"root={str(root)!r}: there is no such folder")
    return folder


def check_split(split: str) -> str:
    """Return ``split`` if it is a plain name, which cannot lead out of the data set's folder."""
    if not _NAME.fullmatch(split):
        raise ValueError(f"split={split!r} is not the name of a split, such as 'val'")
    return split


def list_names(folder: Path, split: str) -> list[str]:
    """Names of a split's images in ``SPLIT.txt``, the first word of each line; '#' starts a comment."""
    file = folder / f"{check_split(split)}.txt"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: it lists the images of the split")
    if file.stat().st_size > _MOST_LIST_BYTES:
        raise ValueError(f"{file} has more than {_MOST_LIST_BYTES} bytes: it is not a list of images")
    names = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not _NAME.fullmatch(words[0]):
            raise ValueError(f"{file}, line {number}: {words[0][:80]!r} is not the name of an image")
        names.append(words[0])
    if not names:
        raise ValueError(f"{file} lists no image")
    return names


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        check_encoded_size(os.fstat(file.fileno()).st_size)
        return file.read()
