"""Segmenters of a run: made by its settings, or read from what it has left behind."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from cbsa._checks import check_choice
from cbsa.data import MaskDataConfig
from cbsa.models import CheckpointError
from cbsa.segmentation import Segmenter, create_segmenter, load_segmenter
from cbsa.segmentation.about import About
from cbsa.segmentation.checkpoints import from_stored, is_saved_segmenter, to_stored
from cbsa.segmentation.encoders import normalization_by_name, own_size
from cbsa.segmentation.windows import WindowConfig
from cbsa.train.checkpoint import read_run_checkpoint
from cbsa.train.fields import override
from cbsa.train.kinds import expect
from cbsa.train.run_folder import read_run_config
from cbsa.train.segmentation.config import SegmentConfig, SegmenterConfig
from cbsa.train.segmentation.pictures import colours_of, names_of

CHOICES = ("last", "best")


def settle_for(config: SegmentConfig, model: Segmenter) -> SegmentConfig:
    """Settings with the mean and standard deviation of images that a segmenter expects, unless given."""
    return _with_normalization(config, model.normalization)


def settle(config: SegmentConfig) -> SegmentConfig:
    """The same for the segmenter that :func:`build_segmenter` would make, which is not made for it."""
    data, given = config.data, config.model
    if data.mean is not None and data.std is not None:
        return config
    if given.weights is not None:
        return settle_for(config, read_segmenter(Path(given.weights)))
    return _with_normalization(config, normalization_by_name(given.encoder, _pretrained(given)))


def _with_normalization(config: SegmentConfig, values: dict[str, list[float]]) -> SegmentConfig:
    data = config.data
    if len(values["mean"]) != 3:
        raise ValueError(
            f"the encoder takes images with in_chans={len(values['mean'])}, but those of segmentation are "
            "read in RGB: take one with 3"
        )
    mean, std = data.mean or tuple(values["mean"]), data.std or tuple(values["std"])
    return replace(config, data=replace(data, mean=mean, std=std))


def _pretrained(given: SegmenterConfig) -> bool | str | None:
    """The weights of an encoder as :func:`create_segmenter` takes them."""
    return True if given.encoder_weights == "timm" else given.encoder_weights


def build_segmenter(config: SegmentConfig, num_classes: int) -> Segmenter:
    """Create the segmenter of a run for a number of classes, with its initial weights if it has some."""
    given, config = config.model, settle(config)
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
                pretrained_encoder=_pretrained(given),
            )
        except TypeError as error:
            raise ValueError(f"model.encoder_kwargs or model.decoder_kwargs: {error}") from error
    if model.in_chans != 3:
        raise ValueError(
            f"the encoder has in_chans={model.in_chans}, but images are read in RGB: leave it at 3"
        )
    model.set_normalization(*config.data.normalization)
    model.about = About(
        tuple(names_of(config.data, num_classes)),
        colours_of(config.data, num_classes),
        config.data.short_side,
        config.windows,
    )
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
    return to_stored(model)


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


def open_segmenter(
    folder: Path, settings: Sequence[str] = (), which: str = "last"
) -> tuple[SegmentConfig, Segmenter]:
    """Read a segmenter with the settings to use it by.

    Args:
        folder: of a run, which has settings; or one that ``save_segmenter`` wrote, such as ``model/`` of a
            run, which says how images are looked at and by what they are normalised.
        settings: what to change of them, as ``name=value``.
        which: of a run: see :func:`read_segmenter`.
    """
    if not is_saved_segmenter(folder):
        config = expect(SegmentConfig, read_run_config(folder), str(folder))
        return override(config, settings), read_segmenter(folder, which)
    if check_choice("--checkpoint", which, CHOICES) != "last":
        raise ValueError(f"--checkpoint={which}: {folder} holds one segmenter; give the folder of a run")
    model = load_segmenter(folder)
    about, size = model.about, own_size(model.encoder)
    config = SegmentConfig(
        model=SegmenterConfig(weights=str(folder)),
        data=MaskDataConfig(short_side=about.short_side, crop=size),
        windows=about.windows or WindowConfig(size, size),
    )
    return override(config, settings), model


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
