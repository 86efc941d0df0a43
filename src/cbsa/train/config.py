"""What a training run is: typed settings, checked when they are made."""

from dataclasses import dataclass, field
from typing import Any

from cbsa._checks import (
    check_below_one,
    check_choice,
    check_int,
    check_number,
    check_positive_number,
    check_share,
)
from cbsa.data.config import AugmentConfig, DataConfig

OPTIMIZERS = ("lion", "adamw", "sgd")
SCHEDULES = ("cosine", "reference", "constant", "poly")
PRECISIONS = ("fp32", "bf16", "fp16")
PARALLELISMS = ("ddp", "fsdp")
SWITCHES = ("auto", "on", "off")


@dataclass(frozen=True)
class ModelConfig:
    """The model and the weights it starts from.

    Attributes:
        name: a registered model (``cbsa models``), or any other model of timm.
        kwargs: further arguments of :func:`timm.create_model`, e.g. ``model.kwargs.embed_dim=64``.
        weights: weights to start from: a run's folder, a folder written by ``save_model``, a ``.safetensors``
            file, a checkpoint of a run or of the authors, or the name of weights that ship with the package.
            The classifier is kept if its classes agree.
        checkpointing: recompute activations in the backward pass instead of storing them. None leaves it to
            the model: ours do so above a size (:meth:`cbsa.models.Transformer.set_grad_checkpointing`).
    """

    name: str = "cbt_tiny_patch16_224"
    kwargs: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    checkpointing: bool | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser, from timm.

    Attributes:
        name: ``"lion"``, ``"adamw"`` or ``"sgd"`` (with momentum, not Nesterov's).
        lr: learning rate at the top of the schedule.
        weight_decay: decoupled weight decay; with ``"sgd"`` it is added to the gradient.
        betas: momentum coefficients of ``"lion"`` and ``"adamw"``.
        decay_all: decay every parameter, as the reference does; otherwise biases, norms and what the model's
            ``no_weight_decay`` names (positions, CLS, step sizes) are left alone.
        layer_decay: factor of the learning rate from each block to the one below it, for fine-tuning.
        clip_grad: largest norm of the gradient; 0 for no clipping.
        momentum: momentum coefficient of ``"sgd"``.
    """

    name: str = "lion"
    lr: float = 2e-4
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.99)
    decay_all: bool = True
    layer_decay: float = 1.0
    clip_grad: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_positive_number("optimizer.lr", self.lr)
        for name in ("weight_decay", "clip_grad"):
            check_number(f"optimizer.{name}", getattr(self, name), at_least=0)
        if len(self.betas) != 2 or not all(0 <= check_number("optimizer.betas", b) < 1 for b in self.betas):
            raise ValueError(f"optimizer.betas must be two numbers of at least 0, below 1, got {self.betas}")
        check_below_one("optimizer.momentum", self.momentum)
        check_share("optimizer.layer_decay", self.layer_decay)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time; :mod:`cbsa.train.schedule` has the formulas.

    Attributes:
        name: ``"cosine"`` (per step: linear warm-up, then cosine), ``"reference"`` (per epoch: cosine from
            the start, capped by a linear warm-up, as the authors' code has it), ``"constant"`` (after the
            warm-up) or ``"poly"`` (per step: linear warm-up, then a power of what remains).
        warmup_epochs: length of the warm-up.
        min_lr: learning rate at the end of ``"cosine"`` and ``"poly"``.
        power: exponent of ``"poly"``.
    """

    name: str = "cosine"
    warmup_epochs: float = 0.0
    min_lr: float = 0.0
    power: float = 0.9

    def __post_init__(self) -> None:
        check_choice("schedule.name", self.name, SCHEDULES)
        for name in ("warmup_epochs", "min_lr"):
            check_number(f"schedule.{name}", getattr(self, name), at_least=0)
        check_positive_number("schedule.power", self.power)


@dataclass(frozen=True)
class RuntimeConfig:
    """How the computer does it; none of this is meant to change what is learnt.

    Attributes:
        device: ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"`` (autocast; fp16 with a gradient scaler).
        compile: ``torch.compile`` for each block and the stem.
        cuda_graph: run forward and backward as one CUDA graph: ``"auto"`` where that is possible (one GPU, no
            accumulation, no recomputation), ``"on"`` or ``"off"``.
        parallel: with several processes, ``"ddp"`` or ``"fsdp"`` (FSDP2: parameters, gradients and optimiser
            sharded).
        context: processes that share each image, of which each has some rows (context parallelism, see
            :func:`cbsa.parallel.context_parallel`); their number divides that of all processes.
        sync_batch_norm: batch statistics over all processes.
        deterministic: refuse operations whose result varies from run to run on a GPU.
    """

    device: str = "auto"
    precision: str = "bf16"
    compile: bool = False
    cuda_graph: str = "auto"
    parallel: str = "ddp"
    context: int = 1
    sync_batch_norm: bool = True
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_choice("runtime.precision", self.precision, PRECISIONS)
        check_choice("runtime.cuda_graph", self.cuda_graph, SWITCHES)
        check_choice("runtime.parallel", self.parallel, PARALLELISMS)
        check_int("runtime.context", self.context)


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state of a run is written.

    Attributes:
        every_epochs: after every so many epochs, and after the last.
        every_steps: also after every so many steps; 0 for not.
        keep: how many of the newest to keep, beside the best.
    """

    every_epochs: int = 1
    every_steps: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        check_int("checkpoint.every_epochs", self.every_epochs)
        check_int("checkpoint.every_steps", self.every_steps, at_least=0)
        check_int("checkpoint.keep", self.keep)


@dataclass(frozen=True)
class RunConfig:
    """What runs of every task have in common; the tasks say more of ``model``, ``data`` and ``augment``.

    Attributes:
        recipe: name of the recipe these settings come from.
        model: the model and its initial weights.
        data: data set and sizes of images.
        augment: augmentation.
        optimizer: optimiser.
        schedule: learning rate over time.
        runtime: device, precision, compilation, parallelism.
        checkpoint: when the state is written.
        epochs: passes over the training set.
        batch_size: images per optimiser step, over all processes and accumulated parts.
        accumulate: parts that the batch of a process is divided into; gradients are accumulated over them.
        ema: decay of the moving average of the weights, evaluated and exported instead of them; 0 for none.
        seed: seed of initialisation, order and augmentation.
        eval_batch_size: images per evaluation step, over all processes.
        eval_every: evaluate after every so many epochs, and after the last.
        log_every: steps between two log entries, and between two looks at the loss on a GPU.
    """

    recipe: str = "custom"
    model: Any = None
    data: Any = None
    augment: Any = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    epochs: int = 150
    batch_size: int = 256
    accumulate: int = 1
    ema: float = 0.0
    seed: int = 0
    eval_batch_size: int = 512
    eval_every: int = 1
    log_every: int = 50

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "eval_batch_size", "eval_every", "log_every"):
            check_int(name, getattr(self, name))
        check_int("seed", self.seed, at_least=0)
        check_below_one("ema", self.ema)
        if self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(
                f"schedule.min_lr={self.schedule.min_lr:g} must be at most optimizer.lr={self.optimizer.lr:g}"
            )


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A run that trains a classifier: the settings of :class:`RunConfig`, and these.

    Attributes:
        label_smoothing: share of the target spread evenly over the classes.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one("label_smoothing", self.label_smoothing)
        mixing = self.augment.mixup > 0 or self.augment.cutmix > 0
        if mixing and self.batch_size // self.accumulate % 2:
            raise ValueError(
                f"augment.mixup and augment.cutmix pair the images of a batch: "
                f"{self.batch_size // self.accumulate} is odd; take an even batch_size / accumulate"
            )
