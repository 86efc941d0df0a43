"""What the training loop has to know of a task: its images, model, loss and evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from cbsa.data import Batch, CorruptLog, EvalLoader, TrainLoader
from cbsa.models.compiling import compile_blocks
from cbsa.train.config import RunConfig
from cbsa.train.distributed import World

if TYPE_CHECKING:
    from cbsa.train.state import Progress

Metrics = TypeVar("Metrics")
Update = Callable[[int, int], None]  # how many are done, and how many there are


class Source(Protocol):
    """The images of a split: how many there are, their classes, and a name for each."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names."""

    def __len__(self) -> int: ...

    def identify(self, index: int) -> str:
        """Return the path or name of an image, for messages."""


class Share(TypedDict):
    """What every loader takes beside its images: the process's share of them, and whom to tell what."""

    device: torch.device
    rank: int
    world_size: int
    corrupt: CorruptLog
    progress: Update


class Steps(TypedDict):
    """What every training loader takes beside that: the images of an optimiser step, and their order."""

    batch_size: int
    accumulate: int
    seed: int


class Objective(ABC):
    """How a batch is learnt from."""

    @abstractmethod
    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what the model takes, and what its output is compared with."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar, of float32 logits."""

    def measure(
        self, model: nn.Module, images: Tensor, targets: Tensor, precision: AbstractContextManager[Any]
    ) -> Tensor:
        """Run the model on what was prepared, in a precision, and return the loss."""
        with precision:
            logits = model(images)
        return self.loss(logits.float(), targets)


def share_of(world: World, corrupt: CorruptLog, progress: Update) -> Share:
    """The share of a process among all."""
    return {
        "device": world.device,
        "rank": world.data_rank,
        "world_size": world.data_size,
        "corrupt": corrupt,
        "progress": progress,
    }


class Task(ABC, Generic[Metrics]):
    """A kind of run; one loop, with its checkpoints, resumption and processes, serves all of them."""

    config: RunConfig

    @property
    @abstractmethod
    def model_name(self) -> str:
        """What to call the model."""

    @property
    def data_name(self) -> str:
        """Name of the data set."""
        return str(self.config.data.dataset)

    @property
    def max_corrupt(self) -> int:
        """How many images may be unreadable, or have wrong masks."""
        return int(self.config.data.max_corrupt)

    def settled(self) -> RunConfig:
        """The settings, with what they leave to the model or the data filled in; these are stored."""
        return self.config

    def fetch(self) -> None:
        """Bring the data set here if the run may; one process calls it before the others open anything."""

    # --- images ------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, train: bool) -> Any:
        """Open the split to train on, or to evaluate on: a :class:`Source` that the loaders read."""

    @abstractmethod
    def load_train(self, source: Any, world: World, corrupt: CorruptLog, progress: Update) -> TrainLoader:
        """This process's share of the training images."""

    @abstractmethod
    def load_eval(self, source: Any, world: World, corrupt: CorruptLog, progress: Update) -> EvalLoader:
        """This process's share of the images to evaluate on."""

    def steps(self) -> Steps:
        """How a training loader of this run divides its images."""
        config = self.config
        return {"batch_size": config.batch_size, "accumulate": config.accumulate, "seed": config.seed}

    def images_at_once(self, world: World) -> int:
        """Images per evaluation step of one process."""
        return max(1, self.config.eval_batch_size // world.data_size)

    # --- model -------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self, num_classes: int) -> nn.Module:
        """Create the model with its initial weights."""

    def compile_model(self, model: nn.Module) -> None:
        """Compile the parts of a model in place."""
        compile_blocks(model)

    @abstractmethod
    def model_arguments(self, model: nn.Module) -> dict[str, Any]:
        """What makes the same model again beside the settings; stored in checkpoints as JSON."""

    @abstractmethod
    def objective(self, num_classes: int, world: World) -> Objective:
        """How batches are learnt from."""

    def begin(
        self, assess: Callable[[nn.Module], Metrics], num_classes: int, folder: Path, world: World
    ) -> None:
        """Do what comes before the first step, whenever the run is started; all processes take part.

        Args:
            assess: evaluates a model as the run's own.
            num_classes: number of classes.
            folder: folder of the run.
            world: this process among all.
        """

    def arrange(self, model: nn.Module, step: int, total_steps: int) -> bool:
        """Bring the model into the form it has in a step, if that varies; whether anything changed."""
        return False

    # --- evaluation --------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(
        self, model: nn.Module, batches: EvalLoader, num_classes: int, world: World, progress: Update
    ) -> Metrics:
        """Evaluate the model; every process brings its share of the batches, and all get the result."""

    @abstractmethod
    def score(self, metrics: Metrics) -> float:
        """What makes one epoch better than another, in percent."""

    @abstractmethod
    def record(self, metrics: Metrics) -> dict[str, float]:
        """What the log of an epoch says of an evaluation."""

    @abstractmethod
    def describe(self, metrics: Metrics, num_classes: int) -> str:
        """What a person reads of an evaluation, in a line of an epoch."""

    # --- outcome -----------------------------------------------------------------------------------------

    @abstractmethod
    def results(
        self, metrics: Metrics, classes: list[str], progress: "Progress", folder: Path
    ) -> dict[str, Any]:
        """What the summary says of the last evaluation; tables go to files of the run's folder."""

    @abstractmethod
    def export(self, folder: Path, num_classes: int, state: dict[str, Any], summary: dict[str, Any]) -> None:
        """Write the final weights, averaged ones if the run keeps an average, into ``model/``."""
