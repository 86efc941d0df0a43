"""How good a segmenter is on a data set: every labelled pixel counted exactly once, over all processes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbsa.data import EvalLoader, MaskDataConfig, normalise
from cbsa.data.label_sets import IGNORE
from cbsa.segmentation.metrics import PixelCounts, Scores
from cbsa.segmentation.windows import WindowConfig, segment
from cbsa.train.distributed import World
from cbsa.train.step import autocast

_SMALLEST = 1e-12  # probability, so that its logarithm is finite


@dataclass(frozen=True)
class SegmentationMetrics:
    """Result of an evaluation.

    Attributes:
        scores: IoU, accuracy and boundary IoU.
        loss: mean of −log p of the true class, over labelled pixels.
        count: number of images.
        confusion: (classes, classes) counts of pixels, rows are true classes.
    """

    scores: Scores
    loss: float
    count: int
    confusion: Tensor

    @property
    def miou(self) -> float:
        """Mean IoU in percent, over the classes that are present."""
        return 100 * self.scores.miou


@torch.no_grad()
def evaluate_segmenter(
    model: nn.Module,
    batches: EvalLoader,
    *,
    data: MaskDataConfig,
    windows: WindowConfig,
    num_classes: int,
    precision: str,
    world: World,
    at_a_time: int = 1,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> SegmentationMetrics:
    """Evaluate a segmenter; in several processes, each brings its share and all get the result.

    Nothing is compiled for it: images, and with them windows, may differ in size and number.

    Args:
        model: the segmenter, not wrapped by DDP.
        batches: this process's images, one a batch; those that are not ``valid`` are not counted.
        data: for the normalisation of the images.
        windows: how images are looked at.
        num_classes: number of classes.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        world: this process among all.
        at_a_time: how many images of one size, if they follow each other, are looked at together.
        progress: called after each image with how many are done and how many there are.
    """
    counts = PixelCounts(num_classes, world.device)
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)  # loss, images
    training = model.training
    model.eval()
    try:
        for images, true in _groups(batches, at_a_time, progress):
            with torch.compiler.set_stance("force_eager"), autocast(world.device, precision):
                looked_at = normalise(images, *data.normalization)
                likely = segment(model, looked_at, windows, true.shape[-2:])  # (B, classes, h, w)
            counts.update(likely.argmax(1), true)
            sums[0] += _negative_log(likely, true)
            sums[1] += len(images)
    finally:
        model.train(training)
    counts.reduce(world.sum)
    loss, count = world.sum(sums).tolist()
    if count == 0:
        raise ValueError("there is no image to evaluate on")
    scores = counts.scores()
    return SegmentationMetrics(scores, loss / scores.pixels, int(count), counts.confusion.cpu())


def _negative_log(likely: Tensor, true: Tensor) -> Tensor:
    """Sum of −log p of the true class over labelled pixels, in float64."""
    labelled = true != IGNORE
    classes = true.long().where(labelled, 0)[:, None]
    logarithms = likely.gather(1, classes)[:, 0].clamp(min=_SMALLEST).log()
    return -torch.where(labelled, logarithms.double(), 0).sum()


def _groups(
    batches: EvalLoader, at_a_time: int, progress: Callable[[int, int], object]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images that follow each other and are of one size, with masks of one size, together."""
    group: list[tuple[Tensor, Tensor]] = []
    for done, batch in enumerate(batches, 1):
        if bool(batch.valid.all()):
            pair = batch.images, batch.targets
            fits = bool(group) and all(a.shape == b.shape for a, b in zip(group[0], pair, strict=True))
            if group and (not fits or len(group) == at_a_time):
                yield _join(group)
                group = []
            group.append(pair)
        progress(done, len(batches))
    if group:
        yield _join(group)


def _join(group: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([images for images, _ in group]), torch.cat([masks for _, masks in group])
