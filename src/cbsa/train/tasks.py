"""The task of a run, by the kind of its settings."""

from typing import Any

from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.adaptation.task import Adaptation
from cbsa.train.classification import Classification
from cbsa.train.config import RunConfig, TrainConfig
from cbsa.train.segmentation.config import SegmentConfig
from cbsa.train.segmentation.task import Segmentation
from cbsa.train.task import Task


def task_of(config: RunConfig) -> Task[Any]:
    """What a run does."""
    if isinstance(config, AdaptConfig):
        return Adaptation(config)
    if isinstance(config, TrainConfig):
        return Classification(config)
    if isinstance(config, SegmentConfig):
        return Segmentation(config)
    raise TypeError(f"config must be a TrainConfig or a SegmentConfig, got {type(config).__name__}")
