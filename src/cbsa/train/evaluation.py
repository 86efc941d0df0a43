"""How good a model is on a data set: every image counted exactly once, over all processes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.data import EvalLoader, normalise
from cbsa.data.config import DataConfig
from cbsa.train.distributed import World
from cbsa.train.step import autocast

MOST_CLASSES_CONFUSED = 2048  # above, no confusion matrix is kept


@dataclass(frozen=True)
class Metrics:
    """Result of an evaluation.

    Attributes:
        loss: mean cross-entropy, without label smoothing.
        top1: share of the images whose true class is the most likely one, in percent.
        top5: share of those whose true class is among the five most likely ones, in percent.
        count: number of images.
        confusion: (classes, classes) counts, rows are true classes; None with very many classes.
    """

    loss: float
    top1: float
    top5: float
    count: int
    confusion: Tensor | None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: EvalLoader,
    *,
    data: DataConfig,
    num_classes: int,
    precision: str,
    world: World,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Metrics:
    """Evaluate a model; in several processes, each brings its share of the batches and all get the result.

    Args:
        model: the model, not wrapped by DDP.
        batches: this process's batches; images that are not ``valid`` are not counted.
        data: for the normalisation of the images.
        num_classes: number of classes.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        world: this process among all.
        progress: called after each batch with how many are done and how many there are.
    """
    device = world.device
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, top-1, top-5, count
    kept = num_classes <= MOST_CLASSES_CONFUSED
    confusion = torch.zeros(num_classes**2 if kept else 0, dtype=torch.int64, device=device)
    training = model.training
    model.eval()
    try:
        for done, batch in enumerate(batches, 1):
            with autocast(device, precision):
                logits = model(normalise(batch.images, data.mean, data.std)).float()  # (B, classes)
            valid = batch.valid.double()
            losses = F.cross_entropy(logits, batch.targets, reduction="none")
            likely = logits.topk(min(5, num_classes)).indices  # (B, 5)
            found = likely == batch.targets[:, None]
            # Weighing by validity would spread a NaN of an invalid image: choose instead.
            sums[0] += torch.where(batch.valid, losses.double(), 0).sum()
            sums[1] += (valid * found[:, 0]).sum()
            sums[2] += (valid * found.any(1)).sum()
            sums[3] += valid.sum()
            if kept:
                pairs = batch.targets * num_classes + likely[:, 0]
                confusion.scatter_add_(0, pairs, batch.valid.long())
            progress(done, len(batches))
    finally:
        model.train(training)
    world.sum_over_data(sums)
    world.sum_over_data(confusion)
    loss, top1, top5, count = sums.tolist()
    if count == 0:
        raise ValueError("there is no image to evaluate on")
    return Metrics(
        loss / count,
        100 * top1 / count,
        100 * top5 / count,
        int(count),
        confusion.view(num_classes, num_classes).cpu() if kept else None,
    )
