"""Segmenters of a run: made by its settings, or read from what it has left behind."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from cbsa._checks import check_choice
from cbsa.models import CheckpointError
from cbsa.segmentation import Segmenter, create_segmenter, load_segmenter
from cbsa.segmentation.checkpoints import from_stored
from cbsa.train.checkpoint import read_run_checkpoint
from cbsa.train.segmentation.config import SegmentConfig

CHOICES = ("last", "best")


def build_segmenter(config: SegmentConfig, num_classes: int) -> Segmenter:
    """Create the segmenter of a run for a number of classes, with its initial weights if it has some."""
    given = config.model
    if given.weights is not None:
        model = read_segmenter(Path(given.weights))
        check_classes(model, num_classes, config)
    else:
        try:
            model = create_segmenter(
                given.encoder,
                given.decoder,
                num_classes,
                img_size=config.data.crop,
                encoder_kwargs=given.encoder_kwargs,
                decoder_kwargs=given.decoder_kwargs,
                pretrained_encoder=True if given.encoder_weights == "timm" else given.encoder_weights,
            )
        except TypeError as error:
            raise ValueError(f"model.encoder_kwargs or model.decoder_kwargs: {error}") from error
    if given.checkpointing is not None:
        model.set_grad_checkpointing(given.checkpointing)
    return model


def check_classes(model: Segmenter, num_classes: int, config: SegmentConfig) -> None:
    """Raise if a segmenter is for another number of classes than the data set has."""
    if model.num_classes != num_classes:
        raise ValueError(
            f"the segmenter has {model.num_classes} classes, but data.dataset={config.data.dataset!r} has "
            f"{num_classes}"
        )


def segmenter_arguments(model: nn.Module) -> dict[str, Any]:
    """What makes the same segmenter again, as ``config.json`` of a saved one has it."""
    assert isinstance(model, Segmenter)
    return {"segmenter": model.config, **model.normalization}


def make_segmenter(arguments: Any, where: str) -> Segmenter:
    """Make the segmenter that :func:`segmenter_arguments` describes, with random weights."""
    return from_stored(arguments, where)


def read_segmenter(path: Path, which: str = "last") -> Segmenter:
    """Read the segmenter of a run's folder, of a folder written by ``save_segmenter``, or of a checkpoint.

    Args:
        path: folder or ``.pt`` file.
        which: of a run: ``"last"``, its final weights or else its newest checkpoint, or ``"best"``.
    """
    check_choice("--checkpoint", which, CHOICES)
    if path.is_file():
        return _of_checkpoint(path)
    checkpoints = path / "checkpoints"
    if which == "best":
        if not (checkpoints / "best.pt").is_file():
            raise FileNotFoundError(f"{checkpoints / 'best.pt'} is not there: the run has not come that far")
        return _of_checkpoint(checkpoints / "best.pt")
    for folder in (path / "model", path):
        if (folder / "model.safetensors").is_file():
            return load_segmenter(folder)
    newest = sorted(checkpoints.glob("step-*.pt"))
    if not newest:
        raise FileNotFoundError(f"{path} holds no segmenter: expected the folder of a run, or a saved one")
    return _of_checkpoint(newest[-1])


def _of_checkpoint(path: Path) -> Segmenter:
    content = read_run_checkpoint(path)
    try:
        arguments = json.loads(content["model_args"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not say which model it is of") from error
    model = make_segmenter(arguments, str(path))
    try:
        model.load_state_dict(content.get("average", content["model"]))
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit the model it names. {error}") from error
    return model
