"""What a run that adapts a ViT is."""

from dataclasses import dataclass, field

from cbsa._checks import check_choice, check_int, check_number, check_positive_number, check_share
from cbsa.adaptation.style import STYLES, Style
from cbsa.train.config import OptimizerConfig, ScheduleConfig, TrainConfig

TASK = "adaptation"
DISTILLED = ("none", "logits", "features", "both")
ORDERS = ("last", "first")


@dataclass(frozen=True)
class SwapConfig:
    """The attention that takes the place of softmax, and when; see :func:`cbsa.adapt`.

    Attributes:
        style: ``"cbsa"`` (CBSA*), ``"agent"`` (CBSA∨), ``"linear"``, or ``"softmax"``: the original itself is
            fine-tuned, for comparison.
        layers: which layers, by number, negative ones from the end; all by default.
        representatives: layout of the representatives of ``"cbsa"`` and ``"agent"``.
        kernel: kernel of the linear style, ``"relu"`` or ``"elu"``.
        broadcast_scale: scale of the agent style's second softmax, by default that of the first.
        broadcast: how tokens take up contractions in ``"cbsa"``, ``"transpose"`` or ``"softmax"``.
        groups: in how many groups the layers are replaced, one after another; 1 for all at the beginning.
        over: share of the steps over which the groups are replaced, the last at ``over``·(1 − 1/groups).
        order: which layers come first, the ``"last"`` of the model or its ``"first"``.
    """

    style: str = "cbsa"
    layers: tuple[int, ...] | None = None
    representatives: tuple[int, int] | None = (8, 8)
    kernel: str = "relu"
    broadcast_scale: float | None = None
    broadcast: str = "transpose"
    groups: int = 1
    over: float = 0.5
    order: str = "last"

    def __post_init__(self) -> None:
        check_choice("swap.style", self.style, STYLES)
        check_choice("swap.order", self.order, ORDERS)
        check_int("swap.groups", self.groups)
        check_share("swap.over", self.over)
        if self.groups > 1 and self.style == "softmax":
            raise ValueError(f"swap.groups={self.groups}: style 'softmax' replaces nothing; leave it at 1")
        self.target()

    def target(self) -> Style:
        """The style that layers come to have."""
        return Style(self.style, self.representatives, self.kernel, self.broadcast_scale, self.broadcast)


@dataclass(frozen=True)
class DistillConfig:
    """What is learnt from the original model beside the labels.

    The loss is ``labels``·CE + ``logits``·τ²·KL(original ‖ adapted, logits over τ) + ``features``·MSE, where
    MSE is the mean over layers of the squared difference of the tokens after each block, every token
    normalised to mean 0 and variance 1. Terms that are not chosen are left out.

    Attributes:
        what: ``"none"``, ``"logits"``, ``"features"`` (tokens after each block) or ``"both"``.
        labels: weight of the cross-entropy with the labels.
        logits: weight of the logits' term.
        features: weight of the features' term.
        temperature: τ.
    """

    what: str = "none"
    labels: float = 1.0
    logits: float = 1.0
    features: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_choice("distill.what", self.what, DISTILLED)
        for name in ("labels", "logits", "features"):
            check_number(f"distill.{name}", getattr(self, name), at_least=0)
        check_positive_number("distill.temperature", self.temperature)
        if self.labels == 0 and not (
            self.logits * self.uses("logits") + self.features * self.uses("features")
        ):
            raise ValueError(
                f"distill.labels=0 with distill.what={self.what!r}: nothing is left to learn from; choose "
                "another, with a weight above 0"
            )

    def uses(self, term: str) -> bool:
        """Whether a term, ``"logits"`` or ``"features"``, is chosen."""
        return self.what in (term, "both")


@dataclass(frozen=True)
class AdaptConfig(TrainConfig):
    """A run that swaps the attention of a trained ViT and fine-tunes it: a :class:`TrainConfig`, and these.

    By default as the authors: AdamW 5e-5, decay 0.01, batch 512, 50 epochs, 10 of warm-up.

    Attributes:
        swap: the attention that is put in, and when.
        distill: what is learnt from the original.
        task: ``"adaptation"``, by which stored settings are told from those of other tasks.
    """

    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig("adamw", 5e-5, 0.01, (0.9, 0.999))
    )
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig("cosine", warmup_epochs=10))
    epochs: int = 50
    batch_size: int = 512
    swap: SwapConfig = field(default_factory=SwapConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    task: str = TASK

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("task", self.task, (TASK,))
        if self.distill.uses("features") and self.model.checkpointing:
            raise ValueError(
                f"distill.what={self.distill.what!r} compares tokens that model.checkpointing=true does not "
                "keep; set one of them back"
            )
