"""Images with masks in the official folders of ADE20K, Cityscapes and Pascal-Context, and in plain ones."""

import os
from collections.abc import Callable
from pathlib import Path

from cbsa.data.decode import EXTENSIONS
from cbsa.data.sources.listing import image_files
from cbsa.data.sources.masks import FileMasks, MaskSource, list_names

_MOST_NAMED = 5  # files that an error lists
_MASK_FOLDERS = ("masks", "annotations", "labels")


def open_ade20k(root: Path, split: str) -> MaskSource:
    """Open the scene parsing benchmark of ADE20K: 0 other, 1–150 classes.

    Args:
        root: folder with ``images/SPLIT`` and ``annotations/SPLIT``, or one above it
            (``ADEChallengeData2016``). Both may hold the files of one split themselves.
        split: ``"training"`` (20,210 images) or ``"validation"`` (2,000).
    """
    folder = next((f for f in (root, root / "ADEChallengeData2016") if (f / "annotations").is_dir()), None)
    if folder is None or not (folder / "images").is_dir():
        raise FileNotFoundError(
            f"{root} has no images/ and annotations/: give the folder of ADEChallengeData2016"
        )
    if (folder / "annotations" / split).is_dir():
        return _pair(folder, f"images/{split}", f"annotations/{split}", "ade20k")
    prefix = {"training": "ADE_train_", "validation": "ADE_val_"}.get(split)
    if prefix is None or not any((folder / "images").glob(f"{prefix}*")):
        raise FileNotFoundError(
            f"{folder} has no annotations/{split}: expected the splits training and validation"
        )
    return _pair(folder, "images", "annotations", "ade20k", wanted=lambda name: name.startswith(prefix))


def open_cityscapes(root: Path, split: str) -> MaskSource:
    """Open Cityscapes with fine annotations, by its own labels or, where they were made, by training labels.

    Args:
        root: folder with ``leftImg8bit/SPLIT/CITY`` and ``gtFine/SPLIT/CITY``.
        split: ``"train"`` (2,975 images) or ``"val"`` (500).
    """
    for folder in ("leftImg8bit", "gtFine"):
        if not (root / folder / split).is_dir():
            raise FileNotFoundError(
                f"{root} has no {folder}/{split}: give the folder with leftImg8bit/ and gtFine/ of Cityscapes"
            )
    own, for_training = "_gtFine_labelIds", "_gtFine_labelTrainIds"
    masks = list(image_files(root / "gtFine" / split))
    only_for_training = not any(path.endswith(f"{own}.png") for path in masks) and any(
        path.endswith(f"{for_training}.png") for path in masks
    )
    end = for_training if only_for_training else own
    return _pair(
        root,
        f"leftImg8bit/{split}",
        f"gtFine/{split}",
        "cityscapes_train_ids" if only_for_training else "cityscapes",
        mask_of=lambda stem: stem.removesuffix("_leftImg8bit") + end,
    )


def open_pascal_context(root: Path, split: str) -> MaskSource:
    """Open Pascal-Context with 59 classes: 0 background, 1–59 classes.

    Args:
        root: folder with ``JPEGImages``, ``SegmentationClassContext`` and
            ``ImageSets/SegmentationContext/SPLIT.txt``, as :mod:`cbsa.data.pascal_context` and MMSegmentation
            write them, or one above it (``VOCdevkit``, or what holds that).
        split: ``"train"`` (4,998 images) or ``"val"`` (5,105); by MMSegmentation 4,996 and 5,104.
    """
    for folder in (root, root / "VOC2010", root / "VOCdevkit" / "VOC2010"):
        if (folder / "SegmentationClassContext").is_dir():
            names = list_names(folder / "ImageSets" / "SegmentationContext", split)
            return FileMasks(
                folder,
                [f"JPEGImages/{name}.jpg" for name in names],
                [f"SegmentationClassContext/{name}.png" for name in names],
                "pascal_context",
            )
    raise FileNotFoundError(
        f"{root} has no SegmentationClassContext/: give the folder of VOC2010, with JPEGImages, "
        "SegmentationClassContext and ImageSets/SegmentationContext in it"
    )


def open_mask_folder(root: Path, split: str) -> MaskSource:
    """Open ``images/SPLIT/….jpg`` with ``masks/SPLIT/….png`` (or ``annotations/`` or ``labels/``).

    A mask has the name of its image, but for the extension, in the same folder below ``SPLIT``.
    """
    masks = mask_folder(root)
    return _pair(root, f"images/{split}", f"{masks}/{split}", "folder")


def mask_folder(root: Path) -> str:
    """Name of the folder with the masks of a plain data set."""
    for name in _MASK_FOLDERS:
        if (root / name).is_dir() and (root / "images").is_dir():
            return name
    raise FileNotFoundError(
        f"{root} must hold images/SPLIT/ and one of {', '.join(f'{name}/SPLIT/' for name in _MASK_FOLDERS)}"
    )


def read_class_names(root: Path) -> tuple[str, ...]:
    """Names of the classes of a plain data set, one a line of ``classes.txt``."""
    path = root / "classes.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: write the names of the classes into it, one a line")
    if path.stat().st_size > 1 << 20:
        raise ValueError(f"{path} has more than {1 << 20} bytes: it is not a list of classes")
    lines = path.read_text(encoding="utf-8-sig", errors="replace").rstrip().splitlines()
    names = tuple(line.strip() for line in lines)
    for label, name in enumerate(names):
        if not name:
            raise ValueError(
                f"{path}: line {label + 1} is empty, and so the name of label {label}: write it, or remove "
                "the line"
            )
        if name in names[:label]:
            raise ValueError(f"{path}: the labels {names.index(name)} and {label} are both called {name!r}")
    return names


def _pair(
    root: Path,
    images: str,
    masks: str,
    labels: str,
    mask_of: Callable[[str], str] = lambda stem: stem,
    wanted: Callable[[str], bool] = lambda name: True,
) -> MaskSource:
    """Images of a folder, with the masks of the same place and name in another; none may be missing."""
    for folder in (images, masks):
        if not (root / folder).is_dir():
            raise FileNotFoundError(_missing(root / folder))
    found = [path for path in sorted(image_files(root / images)) if wanted(os.path.basename(path))]
    if not found:
        raise FileNotFoundError(f"{root / images} holds no image ({', '.join(EXTENSIONS)})")
    by_stem: dict[str, list[str]] = {}
    for path in sorted(image_files(root / masks)):
        by_stem.setdefault(os.path.splitext(path)[0], []).append(path)
    pairs, lacking = [], []
    for path in found:
        parent, name = os.path.split(os.path.splitext(path)[0])
        masks_of_it = by_stem.get(os.path.join(parent, mask_of(name)), [])
        if len(masks_of_it) > 1:
            raise ValueError(
                f"{root / images / path} has several masks in {root / masks}: {', '.join(masks_of_it)}; "
                "keep one of them"
            )
        if masks_of_it:
            pairs.append((f"{images}/{path}", f"{masks}/{masks_of_it[0]}"))
        else:
            lacking.append(path)
    if lacking:
        shown = ", ".join(lacking[:_MOST_NAMED]) + (", …" if len(lacking) > _MOST_NAMED else "")
        raise FileNotFoundError(
            f"{len(lacking)} of {len(found)} images in {root / images} have no mask in {root / masks}: "
            f"{shown}"
        )
    return FileMasks(root, [image for image, _ in pairs], [mask for _, mask in pairs], labels)


def _missing(folder: Path) -> str:
    """What to say of a split that is not there: which ones are."""
    there = sorted(entry.name for entry in folder.parent.glob("*") if entry.is_dir())[:_MOST_NAMED]
    found = (
        f"{folder.parent} has {', '.join(there)}" if there else f"{folder.parent} has no folder for a split"
    )
    return f"{folder} is missing: {found}; data.train_split and data.val_split name the splits to read"
