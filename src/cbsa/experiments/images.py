"""The images that the analyses look at, as the commands name them: ``digits``, ``parquet:FOLDER``, …"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cbsa._checks import check_choice, check_int
from cbsa.data import DATASETS, DataConfig, ImageSource, build_eval_loader, normalise, open_source
from cbsa.data.source import Subset

_MOST_READ_ALONE = 2000  # images up to which starting worker processes does not pay
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ImageChoice:
    """Some images of the evaluation split of a data set, evenly spaced over it.

    Attributes:
        dataset: one of :data:`cbsa.data.DATASETS`; for masks also ``"voc"``.
        root: its folder.
        split: name of the split; empty for the one to evaluate on.
        count: how many images; 0 for all.
        holdout: of a run that evaluates on a part of its training split, how large that is.
    """

    dataset: str
    root: str | None = None
    split: str = ""
    count: int = 0
    holdout: float = 0.0

    def __post_init__(self) -> None:
        check_int("images", self.count, at_least=0)

    def describe(self) -> dict[str, Any]:
        """What the numbers of a result were measured on."""
        return asdict(self)

    def __str__(self) -> str:
        where = f" in {self.root}" if self.root else ""
        return f"{self.dataset}{where}" + (f", split {self.split}" if self.split else "")


def choose_images(
    text: str | None, known: Sequence[str], *, own: DataConfig | None, split: str = "", count: int = 0
) -> ImageChoice:
    """The images that ``NAME``, ``NAME:FOLDER`` or ``FOLDER`` stands for.

    Args:
        text: what the user gave; None for the data set of the model.
        known: names of data sets that can be used.
        own: data set of the model, if it is known.
        split: name of the split; empty for the one to evaluate on.
        count: how many images; 0 for all.
    """
    if text is None and own is None:
        raise ValueError(
            "the model does not say what it was trained on: give the images by --data NAME:FOLDER, NAME one "
            f"of {', '.join(known)}"
        )
    if text is None:
        assert own is not None
        holdout = 0.0 if split else own.holdout
        return ImageChoice(own.dataset, own.root, split or own.val_split, count, holdout)
    name, _, root = text.partition(":")
    if name not in known and Path(text).expanduser().is_dir():
        return ImageChoice(_layout(Path(text).expanduser(), known), text, split, count)
    if root == "" and ("/" in name or Path(name).suffix):
        raise FileNotFoundError(f"--data {text!r}: there is no such folder")
    check_choice("--data NAME:FOLDER, NAME", name, known)
    return ImageChoice(name, root or None, split, count)


def _layout(folder: Path, known: Sequence[str]) -> str:
    """Guess what lies in a folder."""
    if "voc" in known:  # masks are wanted
        nested = (folder, folder / "VOC2012", folder / "VOCdevkit" / "VOC2012")
        return "voc" if any((f / "SegmentationClass").is_dir() for f in nested) else "pets"
    parquet = any(folder.glob("*.parquet")) or any((folder / "data").glob("*.parquet"))
    return "parquet" if parquet else "folder"


def evenly(total: int, count: int) -> npt.NDArray[np.int64]:
    """``count`` positions evenly spaced over ``total``, all of them for 0 or if there are no more."""
    if count == 0 or count >= total:
        return np.arange(total)
    return np.arange(count) * total // count


class LabelledImages:
    """The chosen images as one model takes them, in batches.

    Args:
        choice: which images.
        data: size, channels and normalisation.
        batch_size: images of a batch.
        img_size: another size than the model's own.
    """

    def __init__(
        self, choice: ImageChoice, data: DataConfig, batch_size: int = 64, img_size: int | None = None
    ) -> None:
        check_choice("data set", choice.dataset, DATASETS)
        self.config = replace(
            data,
            dataset=choice.dataset,
            root=choice.root,
            val_split=choice.split,
            holdout=choice.holdout,
            img_size=check_int("size", img_size or data.img_size),
            store="host",
        )
        source = open_source(self.config, train=False)
        self.source: ImageSource = Subset(source, evenly(len(source), choice.count))
        if len(self.source) <= _MOST_READ_ALONE:
            self.config = replace(self.config, workers=0)
        self._loader = build_eval_loader(
            self.config, self.source, batch_size=check_int("batch", batch_size), device=_CPU
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images (B, C, S, S) and their classes (B,)."""
        for pixels, targets in self.pixels():
            yield self.normalise(pixels), targets

    def pixels(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (B, C, S, S) as bytes, and their classes (B,)."""
        for batch in self._loader:
            yield batch.images[batch.valid], batch.targets[batch.valid]

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes as the model takes them."""
        return normalise(pixels, self.config.mean, self.config.std)
