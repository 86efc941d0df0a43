"""The loss of a segmenter."""

from torch import Tensor
from torch.nn import functional as F

from cbsa.data import Batch, MaskDataConfig, normalise
from cbsa.data.label_sets import IGNORE
from cbsa.train.distributed import World
from cbsa.train.task import Objective


class PixelObjective(Objective):
    """Cross-entropy, averaged over the labelled pixels of all processes.

    Processes may have different numbers of labelled pixels: each loss is weighted so that the mean over
    processes, which DDP takes of the gradients, is that of one process with all of the images. A batch
    without a labelled pixel has the loss 0, and no gradient.

    Args:
        data: for the normalisation of the images.
        world: this process among all.
    """

    def __init__(self, data: MaskDataConfig, world: World) -> None:
        self.data, self.world = data, world

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Normalised images (B, 3, h, w) and classes (B, h, w)."""
        return normalise(batch.images, *self.data.normalization), batch.targets.long()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, classes, h, w)."""
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
        labelled = self.world.sum((targets != IGNORE).sum())
        return total * self.world.size / labelled.clamp(min=1)
