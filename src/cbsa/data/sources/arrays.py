"""Data sets of small images, decoded already: scikit-learn's digits and CIFAR."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from cbsa._checks import check_choice
from cbsa.data.config import DataConfig
from cbsa.data.source import ImageSource, Labels, Subset, stratified_split


class ArraySource(ImageSource):
    """Images in one array of bytes, (n, H, W) or (n, H, W, 3)."""

    def __init__(
        self, name: str, images: npt.NDArray[np.uint8], labels: Labels, classes: Sequence[str]
    ) -> None:
        self.name, self.images, self.labels, self.classes = name, images, labels, classes

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Wrap the image at this position."""
        return Image.fromarray(self.images[index]), int(self.labels[index])

    def identify(self, index: int) -> str:
        """Name the image by its position."""
        return f"{self.name}[{index}]"


def open_digits(config: DataConfig, train: bool) -> ImageSource:
    """Open the 1,797 handwritten 8×8 digits that come with scikit-learn: 1,438 to train, 359 to test.

    scikit-learn does not split them; ours is by class and the same for every run.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    split = (config.train_split or "train") if train else (config.val_split or "test")
    check_choice(f"data.{'train' if train else 'val'}_split", split, ("train", "test"))
    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)  # (n, 8, 8), 0 to 16 there
    labels = digits.target.astype(np.int64)
    kept, test = stratified_split(labels, 0.2, "digits")
    source = ArraySource("digits", images, labels, [str(digit) for digit in range(10)])
    return Subset(source, kept if split == "train" else test)
