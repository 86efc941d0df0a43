"""Evaluating segmenters that lie on disk."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cbsa.data import CorruptLog
from cbsa.segmentation import Segmenter
from cbsa.train.display import Display
from cbsa.train.distributed import join_world
from cbsa.train.kinds import expect
from cbsa.train.run_folder import read_run_config
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.evaluation import SegmentationMetrics
from cbsa.train.segmentation.task import Segmentation
from cbsa.train.segmentation.trained import check_classes, settle_for


@dataclass(frozen=True)
class SegmentAssessment:
    """Result of an evaluation, with the names of the classes and the number of images left out."""

    metrics: SegmentationMetrics
    classes: list[str]
    unreadable: int


def segment_config_of(folder: Path) -> SegmentConfig:
    """Settings of a run that trains a segmenter."""
    return expect(SegmentConfig, read_run_config(folder), str(folder))


def assess_segmenter(
    config: SegmentConfig, model: Segmenter, console: Console | None = None
) -> SegmentAssessment:
    """Evaluate a segmenter on the evaluation split of a configuration, also under ``torchrun``."""
    task = Segmentation(settle_for(config, model))
    with join_world(config.runtime) as world, Display(console if world.is_main else None) as display:
        source = task.open(train=False)
        classes = list(source.classes)
        check_classes(model, len(source.classes), config)
        if model.about.classes and model.about.classes != source.classes:
            display.warn(
                f"the segmenter was trained for the classes {', '.join(model.about.classes)}; those of "
                f"data.dataset={config.data.dataset!r} are {', '.join(classes)}"
            )
        corrupt = CorruptLog(config.data.max_corrupt, report=display.warn)
        with display.task("Evaluating") as update:
            loader = task.load_eval(source, world, corrupt, update)
            metrics = task.evaluate(model.to(world.device), loader, len(classes), world, update)
        return SegmentAssessment(metrics, classes, sum(world.gather(corrupt.count)))
