"""What a run that trains a segmenter is."""

from dataclasses import dataclass, field
from typing import Any

from cbsa._checks import check_choice
from cbsa.data.mask_config import MaskAugmentConfig, MaskDataConfig
from cbsa.segmentation.decoders import DECODERS
from cbsa.segmentation.windows import WindowConfig
from cbsa.train.config import OptimizerConfig, RunConfig, ScheduleConfig

TASK = "segmentation"


@dataclass(frozen=True)
class SegmenterConfig:
    """The segmenter and the weights it starts from; see :func:`cbsa.segmentation.create_segmenter`.

    Attributes:
        encoder: name of a model of ours or of timm.
        encoder_kwargs: further arguments of it.
        encoder_weights: weights of the encoder: a run's folder, a folder of a saved model, a file, the name
            of weights that ship with the package, or ``"timm"`` for those that timm downloads.
        decoder: ``"cbt"``, ``"depict"`` or ``"mask_transformer"``.
        decoder_kwargs: arguments of the decoder, e.g. ``model.decoder_kwargs.tied=true`` for CBSA†.
        weights: weights of a whole segmenter to start from, or to evaluate: a folder of a run or of a saved
            segmenter, or a checkpoint of a run. The settings above must be those it was made with.
        checkpointing: recompute activations of the encoder in the backward pass instead of storing them. None
            leaves it to the encoder.
    """

    encoder: str = "cbt_tiny_patch16_224"
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)
    encoder_weights: str | None = None
    decoder: str = "cbt"
    decoder_kwargs: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    checkpointing: bool | None = None

    def __post_init__(self) -> None:
        check_choice("model.decoder", self.decoder, DECODERS)


@dataclass(frozen=True)
class SegmentConfig(RunConfig):
    """A run that trains a segmenter: the settings of :class:`cbsa.train.config.RunConfig`, and these.

    By default as the reference: SGD 1e-3, momentum 0.9, no decay, poly 0.9, 64 epochs, batch 8.

    Attributes:
        windows: how images are looked at in evaluation.
        task: ``"segmentation"``, by which stored settings are told from those of classifiers.
    """

    model: SegmenterConfig = field(default_factory=SegmenterConfig)
    data: MaskDataConfig = field(default_factory=MaskDataConfig)
    augment: MaskAugmentConfig = field(default_factory=MaskAugmentConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig("sgd", 1e-3, 0.0))
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig("poly"))
    epochs: int = 64
    batch_size: int = 8
    eval_batch_size: int = 8
    windows: WindowConfig = field(default_factory=WindowConfig)
    task: str = TASK

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("task", self.task, (TASK,))
        if self.runtime.context != 1:
            raise ValueError(
                f"runtime.context={self.runtime.context}: processes can share images of a classifier, not of "
                "a segmenter; leave it at 1, and each process has images of its own"
            )
