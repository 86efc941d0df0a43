"""Random access to labelled images, whatever they are stored in."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from cbsa.data.seeding import derive_seed

Labels = npt.NDArray[np.int64]


class ImageSource(ABC):
    """The images of one split by position.

    Random access, not a stream: a batch is then a list of positions, which makes shuffling exact over the
    whole split, and resuming and sharing out over ranks a matter of arithmetic.

    Sources are pickled to worker processes and read there.

    Attributes:
        classes: class names; their number is the number of classes.
        labels: (n,) class of every image, known without decoding any.
    """

    classes: Sequence[str]
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: int) -> tuple[Image.Image, int]:
        """Return the decoded image, of any mode, and its label; raise if it cannot be read."""

    @abstractmethod
    def identify(self, index: int) -> str:
        """Return the path or name of an image, for messages."""


class Subset(ImageSource):
    """Some of the images of another source."""

    def __init__(self, source: ImageSource, indices: Labels) -> None:
        self.source, self.indices = source, indices
        self.classes, self.labels = source.classes, source.labels[indices]

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Read the image at this position of the subset."""
        return self.source.read(int(self.indices[index]))

    def identify(self, index: int) -> str:
        """Name the image at this position of the subset."""
        return self.source.identify(int(self.indices[index]))


def check_labels(labels: Labels, classes: Sequence[str], where: str) -> None:
    """Raise if there is no image, or a label that is not a position in ``classes``."""
    if len(labels) == 0:
        raise ValueError(f"{where} holds no images")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"{where} has labels from {labels.min()} to {labels.max()}, expected 0 to {len(classes) - 1} "
            f"for {len(classes)} classes (unlabelled images cannot be used)"
        )


def stratified_split(labels: Labels, share: float, purpose: str) -> tuple[Labels, Labels]:
    """Split positions per class into a larger and a smaller part; the same for every run.

    Args:
        labels: (n,) classes.
        share: of each class that goes to the smaller part, rounded; at least one image if there are two.
        purpose: what the split is for, so that different splits are independent.

    Returns:
        Positions kept and positions taken out, ascending.
    """
    taken = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        order = np.random.default_rng(derive_seed(purpose, int(label))).permutation(len(members))
        taken[members[order[:count]]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)
