"""The images of a run: training and evaluation, for one process."""

from pathlib import Path
from typing import Any

from cbsa.data import CorruptLog, EvalLoader
from cbsa.train.display import Display
from cbsa.train.distributed import World
from cbsa.train.task import Source, Task


def load_for_evaluation(
    task: Task[Any], source: Any, world: World, corrupt: CorruptLog, display: Display
) -> EvalLoader:
    """This process's share of the images to evaluate on, with a progress bar if they are read at once."""
    with display.task("Evaluation images") as update:
        return task.load_eval(source, world, corrupt, update)


class Pipeline:
    """Opens both splits of a run's data set and loads them.

    Attributes:
        train: training loader.
        evaluation: evaluation loader.
        source: the training images, to name one by its index.
        classes: names of the classes.
        corrupt: unreadable images so far.
    """

    def __init__(self, task: Task[Any], folder: Path, world: World, display: Display) -> None:
        if world.size > 1:
            if world.is_main:
                task.fetch()
            world.any(False)  # the others wait until the data set is there
        self._world = world
        self.source: Source = task.open(train=True)
        held_out: Source = task.open(train=False)
        self.classes = list(self.source.classes)
        if list(held_out.classes) != self.classes:
            raise ValueError("the splits for training and evaluation have different classes")
        self.corrupt = CorruptLog(
            task.max_corrupt, folder / "corrupt.jsonl" if world.is_main else None, report=display.warn
        )
        with display.task("Training images") as update:
            self.train = task.load_train(self.source, world, self.corrupt, update)
        self.evaluation = load_for_evaluation(task, held_out, world, self.corrupt, display)
        self.description = (
            f"{task.data_name}: {len(self.source):,} training and {len(held_out):,} evaluation images, "
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
