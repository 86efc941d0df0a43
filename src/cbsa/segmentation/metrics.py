"""How good predicted label maps are: counts of pixels, added up exactly, and what follows from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cbsa._checks import check_int, check_positive_number

IGNORE = 255  # label of pixels that count for nothing
BOUNDARY_SHARE = 0.02  # of the diagonal: how far from its contour a mask's boundary reaches


@dataclass(frozen=True)
class Scores:
    """What counts of pixels come to; shares from 0 to 1.

    A class without a single true pixel is absent: its ``iou``, ``class_accuracy`` and ``boundary_iou`` are
    NaN and stay out of the means. Pixels wrongly given to it still count against the classes they are of.

    Attributes:
        iou: (classes,) float64, intersection over union of each class.
        class_accuracy: (classes,) float64, share of each class's pixels that are found.
        boundary_iou: (classes,) float64, intersection over union of the classes' boundaries.
        accuracy: share of all labelled pixels that are right.
        pixels: number of labelled pixels.
    """

    iou: Tensor
    class_accuracy: Tensor
    boundary_iou: Tensor
    accuracy: float
    pixels: int

    @property
    def miou(self) -> float:
        """Mean of ``iou`` over the classes that are present."""
        return self.iou.nanmean().item()

    @property
    def mean_accuracy(self) -> float:
        """Mean of ``class_accuracy`` over the classes that are present."""
        return self.class_accuracy.nanmean().item()

    @property
    def mean_boundary_iou(self) -> float:
        """Mean of ``boundary_iou`` over the classes that are present."""
        return self.boundary_iou.nanmean().item()

    def absent(self) -> list[int]:
        """Classes without a true pixel."""
        return self.iou.isnan().nonzero().flatten().tolist()


class PixelCounts:
    """Counts of pixels by true and predicted class, in int64, on the device of the label maps.

    Sums of integers do not depend on their order: the result is the same however the images are divided into
    batches and over processes.

    Args:
        num_classes: number of classes.
        device: where to count.
        ignore: label of true pixels that do not count.
        boundary: reach of boundaries, as a share of the image's diagonal; 0.02 in the paper on boundary IoU
            (Cheng et al., 2021).
    """

    def __init__(
        self,
        num_classes: int,
        device: torch.device | str = "cpu",
        ignore: int = IGNORE,
        boundary: float = BOUNDARY_SHARE,
    ) -> None:
        self.num_classes, self.ignore = check_int("num_classes", num_classes), ignore
        if 0 <= ignore < num_classes:
            raise ValueError(f"ignore={ignore} is one of the {num_classes} classes: take another label")
        self.boundary = check_positive_number("boundary", boundary)
        self._counts = torch.zeros(num_classes * (num_classes + 3), dtype=torch.int64, device=device)

    @property
    def confusion(self) -> Tensor:
        """(classes, classes) counts, rows are true classes."""
        return self._counts[: self.num_classes**2].view(self.num_classes, self.num_classes)

    @property
    def boundaries(self) -> Tensor:
        """(3, classes) counts of boundary pixels: common to both maps, true ones, predicted ones."""
        return self._counts[self.num_classes**2 :].view(3, self.num_classes)

    @torch.no_grad()
    def update(self, predicted: Tensor, true: Tensor) -> None:
        """Count the pixels of some images of one size.

        Args:
            predicted: (B, h, w) integers, classes.
            true: (B, h, w) integers, classes or ``ignore``.
        """
        for name, labels in (("predicted", predicted), ("true", true)):
            if labels.dim() != 3 or labels.is_floating_point() or labels.dtype == torch.bool:
                raise ValueError(
                    f"{name} must be integers of shape (B, h, w), got {labels.dtype} {tuple(labels.shape)}"
                )
        if predicted.shape != true.shape:
            raise ValueError(
                f"predicted is of shape {tuple(predicted.shape)}, true of {tuple(true.shape)}: "
                "label maps must be of one size"
            )
        predicted, true = predicted.long(), true.long()
        labelled = true != self.ignore
        for name, labels in (("predicted", predicted), ("true", true)):
            self._check_range(name, labels[labelled])
        predicted = predicted.where(labelled, -1)  # such a pixel is of no class, in either map
        true = true.where(labelled, -1)
        self._add(self.confusion, (true * self.num_classes + predicted)[labelled])
        edge_true, edge_predicted = (self._edges(labels) & labelled for labels in (true, predicted))
        common = edge_true & edge_predicted & (true == predicted)
        for row, labels in zip(
            self.boundaries, (true[common], true[edge_true], predicted[edge_predicted]), strict=True
        ):
            self._add(row, labels)

    def reduce(self, add: Callable[[Tensor], Tensor]) -> None:
        """Add up the counts of all processes by ``add``, such as :meth:`cbsa.train.distributed.World.sum`."""
        self._counts = add(self._counts)

    def scores(self) -> Scores:
        """What the counts come to; raises if no labelled pixel was counted."""
        confusion, boundaries = self.confusion.cpu(), self.boundaries.cpu()
        total = int(confusion.sum())
        if total == 0:
            raise ValueError("there is no labelled pixel to score: all of them are ignored")
        right, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        common, edge_true, edge_predicted = boundaries
        return Scores(
            iou=_share(right, true + predicted - right, true),
            class_accuracy=_share(right, true, true),
            boundary_iou=_share(common, edge_true + edge_predicted - common, true),
            accuracy=int(right.sum()) / total,
            pixels=total,
        )

    def _check_range(self, name: str, labels: Tensor) -> None:
        if labels.numel() == 0:
            return
        low, high = (int(value) for value in torch.aminmax(labels))
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"{name} has labels from {low} to {high}, expected 0 to {self.num_classes - 1}"
                + (f" or {self.ignore} (ignored)" if name == "true" else "")
            )

    def _add(self, counts: Tensor, positions: Tensor) -> None:
        counts += torch.bincount(positions, minlength=counts.numel()).view_as(counts)

    def _edges(self, labels: Tensor) -> Tensor:
        """Pixels near the contour of their own class's mask: another label, or the image's end, is near."""
        return edges(labels, max(1, round(self.boundary * math.hypot(*labels.shape[-2:]))))


def edges(labels: Tensor, reach: int) -> Tensor:
    """Which pixels erosion by a square of side ``2 · reach + 1`` takes from the masks of their labels.

    What lies outside of the image is of no label. One pass serves all classes: a pixel survives the erosion
    of its own mask if the smallest and the largest label of the square around it are the same.

    Args:
        labels: (B, h, w) integers of at least -1 and below 2²⁴, which float32 holds exactly.
        reach: pixels.

    Returns:
        (B, h, w) booleans.
    """
    values = F.pad(labels.float(), (reach,) * 4, value=-2.0)[:, None]
    kernels = ((2 * reach + 1, 1), (1, 2 * reach + 1))
    largest, smallest = values, -values
    for kernel in kernels:
        largest = F.max_pool2d(largest, kernel, stride=1)
        smallest = F.max_pool2d(smallest, kernel, stride=1)
    return (largest != -smallest)[:, 0]


def _share(part: Tensor, whole: Tensor, true: Tensor) -> Tensor:
    """``part / whole`` in float64, NaN for classes without true pixels."""
    shares = part.double() / whole.double()
    return torch.where(true > 0, shares, torch.nan)
