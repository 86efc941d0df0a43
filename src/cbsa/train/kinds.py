"""Stored settings, read as the kind of run they are of."""

from collections.abc import Mapping
from typing import Any, TypeVar

from cbsa.train.adaptation.config import TASK as ADAPTATION
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.config import RunConfig, TrainConfig
from cbsa.train.fields import from_dict
from cbsa.train.segmentation.config import TASK as SEGMENTATION
from cbsa.train.segmentation.config import SegmentConfig

Config = TypeVar("Config", bound=RunConfig)
_KINDS: dict[Any, type[RunConfig]] = {SEGMENTATION: SegmentConfig, ADAPTATION: AdaptConfig}
_COMMANDS: dict[type[RunConfig], str] = {
    AdaptConfig: "cbsa adapt, eval",
    TrainConfig: "cbsa train, eval",
    SegmentConfig: "cbsa segment train, eval, predict",
}


def config_of(values: Any) -> RunConfig:
    """Settings from what JSON gave; every name and type is checked. Those of classifiers name no task."""
    task = values.get("task") if isinstance(values, Mapping) else None
    return from_dict(_KINDS.get(task, TrainConfig) if isinstance(task, str) else TrainConfig, values)


def expect(kind: type[Config], config: RunConfig, where: str, *, exactly: bool = False) -> Config:
    """Return settings if they are of a kind; otherwise raise, naming the commands for what they are of.

    A run that adapts a classifier is one that trains a classifier too, unless ``exactly`` is given.
    """
    if not isinstance(config, kind) or (exactly and type(config) is not kind):
        commands = next(text for other, text in _COMMANDS.items() if isinstance(config, other))
        raise ValueError(f"{where} is of another task than this command's: use {commands}")
    return config
