"""Evaluating weights that lie on disk."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from cbsa.data import CorruptLog
from cbsa.train.classification import Classification
from cbsa.train.config import TrainConfig
from cbsa.train.display import Display
from cbsa.train.distributed import join_world
from cbsa.train.evaluation import Metrics
from cbsa.train.pipeline import load_for_evaluation
from cbsa.train.run_folder import read_config

CHOICES = ("last", "best")


@dataclass(frozen=True)
class Assessment:
    """Result of an evaluation, with the names of the classes and the number of images left out."""

    metrics: Metrics
    classes: list[str]
    unreadable: int


def config_of_run(folder: Path, which: str = "last") -> TrainConfig:
    """Settings of a run, whose initial weights are its final ones (``"last"``) or its best checkpoint's."""
    config = read_config(folder)
    weights = (
        folder / "model" / "model.safetensors" if which == "last" else folder / "checkpoints" / "best.pt"
    )
    if not weights.is_file():
        checkpoints = sorted((folder / "checkpoints").glob("step-*.pt"))
        if which == "best" or not checkpoints:
            raise FileNotFoundError(f"{weights} is not there: the run has not come that far")
        weights = checkpoints[-1]
    return replace(config, model=replace(config.model, weights=str(weights)))


def assess(config: TrainConfig, console: Console | None = None) -> Assessment:
    """Evaluate the model and weights of a configuration on its evaluation split, also under ``torchrun``.

    Each process has whole images, whether or not the run shared them.
    """
    if config.model.weights is None and not config.model.kwargs.get("pretrained"):
        raise ValueError("there are no weights to evaluate: give model.weights=FILE_OR_FOLDER")
    runtime = replace(config.runtime, context=1)
    with join_world(runtime) as world, Display(console if world.is_main else None) as display:
        task = Classification(config)
        source = task.open(train=False)
        corrupt = CorruptLog(config.data.max_corrupt, report=display.warn)
        loader = load_for_evaluation(task, source, world, corrupt, display)
        model = task.build_model(len(source.classes)).to(world.device)
        if config.runtime.compile:
            task.compile_model(model)
        with display.task("Evaluating") as update:
            metrics = task.evaluate(model, loader, len(source.classes), world, update)
        return Assessment(metrics, list(source.classes), corrupt.count)
