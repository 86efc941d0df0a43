"""The images of a run: training and evaluation, for one process."""

from pathlib import Path

from cbsa.data import (
    CorruptLog,
    EvalLoader,
    ImageSource,
    build_eval_loader,
    build_train_loader,
    open_source,
)
from cbsa.train.config import TrainConfig
from cbsa.train.display import Display
from cbsa.train.distributed import World


def load_for_evaluation(
    source: ImageSource, config: TrainConfig, world: World, corrupt: CorruptLog, display: Display
) -> EvalLoader:
    """This process's share of the images to evaluate on, with a progress bar if they are read at once."""
    with display.task("Evaluation images") as update:
        return build_eval_loader(
            config.data,
            source,
            batch_size=max(1, config.eval_batch_size // world.size),
            device=world.device,
            rank=world.rank,
            world_size=world.size,
            corrupt=corrupt,
            progress=update,
        )


class Pipeline:
    """Opens both splits of a run's data set and loads them.

    Attributes:
        train: training loader.
        evaluation: evaluation loader.
        source: the training images, to name one by its index.
        classes: names of the classes.
        corrupt: unreadable images so far.
    """

    def __init__(self, config: TrainConfig, folder: Path, world: World, display: Display) -> None:
        if config.data.download and world.size > 1:
            if world.is_main:
                open_source(config.data, train=True)
                open_source(config.data, train=False)
            world.any(False)  # the others wait until the data set is there
        self._world = world
        self.source = open_source(config.data, train=True)
        held_out = open_source(config.data, train=False)
        self.classes = list(self.source.classes)
        if list(held_out.classes) != self.classes:
            raise ValueError("the splits for training and evaluation have different classes")
        self.corrupt = CorruptLog(
            config.data.max_corrupt, folder / "corrupt.jsonl" if world.is_main else None, report=display.warn
        )
        with display.task("Training images") as update:
            self.train = build_train_loader(
                config.data,
                config.augment,
                self.source,
                batch_size=config.batch_size,
                accumulate=config.accumulate,
                seed=config.seed,
                device=world.device,
                rank=world.rank,
                world_size=world.size,
                corrupt=self.corrupt,
                progress=update,
            )
        self.evaluation = load_for_evaluation(held_out, config, world, self.corrupt, display)
        self.description = (
            f"{config.data.dataset}: {len(self.source):,} training and {len(held_out):,} evaluation images, "
            f"{self.num_classes} classes, {self.train.store} store"
        )

    def share_unreadable(self) -> None:
        """Bring the unreadable images that other processes met to the main one, which reports them."""
        for entries in self._world.gather(self.corrupt.entries()):
            if self._world.is_main:
                self.corrupt.record_all(entries)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)
