"""Segmenting image files."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from cbsa._checks import check_number
from cbsa._files import prepare_folder, write_atomically
from cbsa.data import CorruptLog, normalise
from cbsa.data.decode import EXTENSIONS, check_encoded_size, decode_image, to_channels
from cbsa.data.joint import EvalImage
from cbsa.data.sources.listing import image_files
from cbsa.segmentation import Segmenter
from cbsa.segmentation.windows import segment
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.pictures import colours_of, index_image, overlay
from cbsa.train.segmentation.trained import settle_for
from cbsa.train.step import autocast

_MOST_COLOURS = 256  # of a palette image


@dataclass(frozen=True)
class Prediction:
    """What became of some images.

    Attributes:
        written: index images that were written.
        pixels: (classes,) int64, pixels of each class over all images.
        unreadable: files that could not be read, and why.
    """

    written: list[Path]
    pixels: torch.Tensor
    unreadable: list[tuple[str, str]]


def find_images(given: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Image files, with the path that each is written to below the output folder, without extension.

    A folder stands for all images below it, in order of their names.
    """
    found: list[tuple[Path, Path]] = []
    for path in given:
        if path.is_file():
            found.append((path, Path(path.stem)))
        elif path.is_dir():
            inside = sorted(Path(name) for name in image_files(path))
            if not inside:
                raise FileNotFoundError(f"{path} holds no image ({', '.join(EXTENSIONS)})")
            found += [(path / name, name.with_suffix("")) for name in inside]
        else:
            raise FileNotFoundError(f"{path}: there is no such file or folder")
    if not found:
        raise ValueError("there is nothing to segment: give image files or folders")
    taken: dict[Path, Path] = {}
    for path, name in found:
        if name in taken:
            raise ValueError(f"{path} and {taken[name]} would both be written to {name}.png: rename one")
        taken[name] = path
    return found


@torch.no_grad()
def predict(
    model: Segmenter,
    config: SegmentConfig,
    images: Sequence[Path],
    out: Path,
    device: torch.device,
    *,
    opacity: float = 0.5,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Prediction:
    """Segment image files: class indices to ``out/labels/….png``, overlays to ``out/overlays/….png``.

    Args:
        model: the segmenter; moved to ``device``.
        config: settings of its run: size, windows, and normalisation if it is not to be the model's.
        images: files, and folders of files.
        out: folder for the results; created if it is not there.
        device: where to compute.
        opacity: of the colours in overlays, from 0 to 1.
        report: called with a message for each file that cannot be read; by default a warning.
        progress: called after each image with how many are done and how many there are.
    """
    if not 0 <= check_number("opacity", opacity) <= 1:
        raise ValueError(f"opacity must be 0 to 1, got {opacity}")
    if model.num_classes > _MOST_COLOURS:
        raise ValueError(
            f"the segmenter has {model.num_classes} classes, but a palette image holds {_MOST_COLOURS}: use "
            "cbsa.segmentation.windows.segment in Python"
        )
    found = find_images(images)
    config = settle_for(config, model)
    prepare_folder(out)
    model = model.to(device).eval()
    colours = model.about.colours or colours_of(config.data, model.num_classes)
    transform = EvalImage(config.data)
    corrupt = CorruptLog(len(found), report=report)
    pixels = torch.zeros(model.num_classes, dtype=torch.int64)
    written = []
    for done, (path, name) in enumerate(found, 1):
        try:
            image = _read(path)
            resized = transform(image)
        except Exception as error:  # a file from outside may break its reader in any way
            corrupt.record(str(path), f"{type(error).__name__}: {error}")
        else:
            scaled = normalise(resized[None].to(device), *config.data.normalization)
            with autocast(device, config.runtime.precision):
                likely = segment(model, scaled, config.windows, (image.height, image.width))
            labels = likely.argmax(1)[0].to("cpu", torch.uint8).numpy()
            pixels += torch.from_numpy(np.bincount(labels.ravel(), minlength=len(pixels)))
            target = out / "labels" / f"{name}.png"
            _save(index_image(labels, colours), target)
            _save(overlay(image, labels, colours, opacity), out / "overlays" / f"{name}.png")
            written.append(target)
        progress(done, len(found))
    return Prediction(written, pixels, corrupt.entries())


def _read(path: Path) -> Image.Image:
    """Decode a photograph, upright as its EXIF orientation says."""
    with open(path, "rb") as file:
        check_encoded_size(os.fstat(file.fileno()).st_size)
        return to_channels(ImageOps.exif_transpose(decode_image(file.read())), 3)


def _save(image: Image.Image, path: Path) -> None:
    write_atomically(path, lambda file: image.save(file, format="PNG"))
