"""Images with masks for zero-shot segmentation: Oxford-IIIT Pets, PASCAL VOC12, and strokes of the digits."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from cbsa._checks import check_choice
from cbsa.data import DataConfig, ImageSource, MaskSource, open_pets_trimaps, open_source, open_voc
from cbsa.experiments.images import ImageChoice, evenly

DATASETS = ("digits", "pets", "voc")
_OPENERS = {"pets": (open_pets_trimaps, "test"), "voc": (open_voc, "val")}
_INKED, _FAINT = 8, 1  # of the 16 dots that a pixel of the digits stands for
DIGITS_NOTE = (
    "The digits have no masks: these are derived from their ink. A pixel counts the inked dots in a block of "
    f"4×4 of the scan; from {_INKED} of 16 on it is foreground, without any background, else boundary."
)


class DigitStrokes(MaskSource):
    """Digits with masks derived from their own brightness: ink is foreground, paper background.

    scikit-learn's digits have 8×8 pixels, each the number of inked dots, 0 to 16, in a block of 4×4 of the
    scanned bitmap (Kaynak, 1995). Blocks with less than half of their dots, but some, are the boundary.
    """

    labels = "pets"

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> tuple[Image.Image, npt.NDArray[np.uint8]]:
        """Return the digit and its mask, both 8×8."""
        image, _ = self.source.read(index)
        dots = np.asarray(image, dtype=np.float64) * (16 / 255)
        mask = np.where(dots >= _INKED - 0.5, 1, np.where(dots < _FAINT - 0.5, 2, 3))
        return image, mask.astype(np.uint8)

    def identify(self, index: int) -> str:
        """Name the image."""
        return self.source.identify(index)

    def _bytes(self, index: int) -> tuple[bytes, bytes]:
        raise NotImplementedError("digits are not encoded")


class SomeMasks(MaskSource):
    """Some of the images of another source."""

    def __init__(self, source: MaskSource, indices: npt.NDArray[np.int64]) -> None:
        self.source, self.indices, self.labels = source, indices, source.labels

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> tuple[Image.Image, npt.NDArray[np.uint8]]:
        """Return the image at this position of the choice, and its mask."""
        return self.source.read(int(self.indices[index]))

    def identify(self, index: int) -> str:
        """Name the image at this position of the choice."""
        return self.source.identify(int(self.indices[index]))

    def _bytes(self, index: int) -> tuple[bytes, bytes]:
        return self.source._bytes(int(self.indices[index]))


def open_masks(choice: ImageChoice) -> MaskSource:
    """Open the chosen images with their masks."""
    check_choice("masks are known of digits, pets and voc: data set", choice.dataset, DATASETS)
    if choice.dataset == "digits":
        data = DataConfig("digits", val_split=choice.split, in_chans=1, mean=(0.5,), std=(0.5,))
        source: MaskSource = DigitStrokes(open_source(data, train=False))
    else:
        if choice.root is None:
            raise ValueError(f"--data {choice.dataset} needs its folder: give --data {choice.dataset}:FOLDER")
        opener, split = _OPENERS[choice.dataset]
        source = opener(choice.root, choice.split or split)
    return SomeMasks(source, evenly(len(source), choice.count))
