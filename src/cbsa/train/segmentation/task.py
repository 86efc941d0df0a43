"""Training segmenters."""

import json
import math
from pathlib import Path
from typing import Any

from torch import nn

from cbsa._files import write_text_atomically
from cbsa.data import (
    CorruptLog,
    EvalLoader,
    SegmentationSource,
    TrainLoader,
    mask_eval_loader,
    mask_train_loader,
    open_segmentation,
)
from cbsa.segmentation import save_segmenter
from cbsa.train.distributed import World
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.evaluation import SegmentationMetrics, evaluate_segmenter
from cbsa.train.segmentation.objective import PixelObjective
from cbsa.train.segmentation.trained import build_segmenter, make_segmenter, segmenter_arguments, settle
from cbsa.train.state import Progress
from cbsa.train.tables import confusion_csv
from cbsa.train.task import Objective, Task, Update, share_of


class Segmentation(Task[SegmentationMetrics]):
    """One class for each pixel.

    Args:
        config: settings of the run.
    """

    def __init__(self, config: SegmentConfig) -> None:
        self.config: SegmentConfig = config

    @property
    def model_name(self) -> str:
        """Names of encoder and decoder."""
        return f"{self.config.model.encoder} + {self.config.model.decoder}"

    def settled(self) -> SegmentConfig:
        """With the mean and standard deviation of images that the model expects, unless they are given."""
        return settle(self.config)

    def open(self, train: bool) -> SegmentationSource:
        """Open a split."""
        return open_segmentation(self.config.data, train)

    def load_train(
        self, source: SegmentationSource, world: World, corrupt: CorruptLog, progress: Update
    ) -> TrainLoader:
        """This process's share of the training images."""
        config = self.config
        share = share_of(world, corrupt, progress)
        return mask_train_loader(config.data, config.augment, source, **self.steps(), **share)

    def load_eval(
        self, source: SegmentationSource, world: World, corrupt: CorruptLog, progress: Update
    ) -> EvalLoader:
        """This process's share of the images to evaluate on."""
        share = share_of(world, corrupt, progress)
        return mask_eval_loader(self.config.data, source, **share)

    def build_model(self, num_classes: int) -> nn.Module:
        """Create the segmenter with its initial weights."""
        return build_segmenter(self.config, num_classes)

    def model_arguments(self, model: nn.Module) -> dict[str, Any]:
        """What makes the same segmenter again."""
        return segmenter_arguments(model)

    def objective(self, num_classes: int, world: World) -> Objective:
        """Cross-entropy over labelled pixels."""
        return PixelObjective(self.config.data, world)

    def evaluate(
        self, model: nn.Module, batches: EvalLoader, num_classes: int, world: World, progress: Update
    ) -> SegmentationMetrics:
        """IoU, accuracy and loss; see :func:`evaluate_segmenter`."""
        return evaluate_segmenter(
            model,
            batches,
            data=self.config.data,
            windows=self.config.windows,
            num_classes=num_classes,
            precision=self.config.runtime.precision,
            world=world,
            at_a_time=self.images_at_once(world),
            progress=progress,
        )

    def score(self, metrics: SegmentationMetrics) -> float:
        """Mean IoU."""
        return metrics.miou

    def record(self, metrics: SegmentationMetrics) -> dict[str, float]:
        """Loss, mean IoU and pixel accuracy."""
        accuracy = 100 * metrics.scores.accuracy
        return {"val_loss": metrics.loss, "val_miou": metrics.miou, "val_accuracy": accuracy}

    def describe(self, metrics: SegmentationMetrics, num_classes: int) -> str:
        """Loss, mean IoU and pixel accuracy."""
        accuracy = 100 * metrics.scores.accuracy
        return f"  val {metrics.loss:.4f}  mIoU {metrics.miou:5.2f} %  pixels {accuracy:5.2f} %"

    def results(
        self, metrics: SegmentationMetrics, classes: list[str], progress: Progress, folder: Path
    ) -> dict[str, Any]:
        """All scores; the confusion matrix goes to ``confusion.csv``."""
        write_text_atomically(folder / "confusion.csv", confusion_csv(metrics.confusion, classes))
        return {**numbers(metrics, classes), "best_miou": progress.best}

    def export(self, folder: Path, num_classes: int, state: dict[str, Any], summary: dict[str, Any]) -> None:
        """Write the final weights into ``model/``, as :func:`cbsa.segmentation.load_segmenter` reads them."""
        model = make_segmenter(json.loads(state["model_args"]), "the model of this run")
        model.load_state_dict(state.get("average", state["model"]))
        save_segmenter(model, folder / "model")


def numbers(metrics: SegmentationMetrics, classes: list[str]) -> dict[str, Any]:
    """Scores as plain values, in percent; a class without a true pixel has None, and is listed as absent."""
    scores = metrics.scores

    def by_class(values: Any) -> dict[str, float | None]:
        shares = [None if math.isnan(value) else 100 * value for value in values.tolist()]
        return dict(zip(classes, shares, strict=True))

    return {
        "miou": metrics.miou,
        "pixel_accuracy": 100 * scores.accuracy,
        "mean_accuracy": 100 * scores.mean_accuracy,
        "boundary_iou": 100 * scores.mean_boundary_iou,
        "loss": metrics.loss,
        "evaluated_images": metrics.count,
        "evaluated_pixels": scores.pixels,
        "iou": by_class(scores.iou),
        "class_accuracy": by_class(scores.class_accuracy),
        "class_boundary_iou": by_class(scores.boundary_iou),
        "absent_classes": [classes[c] for c in scores.absent()],
    }
