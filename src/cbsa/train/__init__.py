"""Training, fine-tuning and evaluation of classifiers and segmenters: recipes, one loop, exact resumption.

``train(recipe("digits_cbt"), "outputs/digits")`` trains, or goes on where it was; under ``torchrun`` in
several processes.
"""

from cbsa.train.config import (
    CheckpointConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
)
from cbsa.train.engine import Result, train
from cbsa.train.evaluation import Metrics, evaluate
from cbsa.train.fields import from_dict, override, to_dict
from cbsa.train.recipes import RECIPES, recipe
from cbsa.train.stopping import NonFiniteError, StoppedError

__all__ = [
    "RECIPES",
    "CheckpointConfig",
    "Metrics",
    "ModelConfig",
    "NonFiniteError",
    "OptimizerConfig",
    "Result",
    "RuntimeConfig",
    "ScheduleConfig",
    "StoppedError",
    "TrainConfig",
    "evaluate",
    "from_dict",
    "override",
    "recipe",
    "to_dict",
    "train",
]
