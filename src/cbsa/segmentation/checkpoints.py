"""Segmenters in and out: weights as safetensors, and what makes the model again as JSON.

Files are untrusted: neither holds code, and a configuration can name registered models alone, not files or
addresses to load from.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from cbsa._files import write_text_atomically
from cbsa.adaptation.stored import ARGUMENT, apply_stored, stored_styles
from cbsa.models import CheckpointError, read_checkpoint
from cbsa.models.checkpoints import load_weights
from cbsa.segmentation.about import About
from cbsa.segmentation.encoder_weights import REFUSED
from cbsa.segmentation.segmenter import Segmenter, create_segmenter

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_KEYS = {"encoder", "encoder_kwargs", "img_size", "decoder", "decoder_kwargs", "num_classes"}


def save_segmenter(segmenter: Segmenter, folder: str | Path) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into a folder; :func:`load_segmenter` reads them.

    Args:
        segmenter: made by :func:`cbsa.segmentation.create_segmenter`.
        folder: created if it is not there.

    Returns:
        The folder.
    """
    folder = Path(folder)
    try:
        text = json.dumps(to_stored(segmenter), indent=2) + "\n"
        with torch.device("meta"):
            again = from_stored(json.loads(text), "its configuration")
        problem = None if _shapes(again) == _shapes(segmenter) else "its weights have other names or shapes"
    except (TypeError, CheckpointError) as error:
        problem = str(error)
    if problem:
        raise CheckpointError(
            f"this segmenter could not be made again from what is known of it: {problem}. Make it by "
            "create_segmenter with the name of an encoder, and encoder_kwargs= for its arguments"
        )
    tensors = {name: t.detach().cpu().contiguous() for name, t in segmenter.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    write_text_atomically(folder / _CONFIG, text)
    return folder


def load_segmenter(folder: str | Path) -> Segmenter:
    """Read a segmenter that :func:`save_segmenter` wrote."""
    path = Path(folder) / _CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a folder written by save_segmenter")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is not the configuration of a segmenter ({error})") from error
    segmenter = from_stored(content, str(path))
    load_weights(segmenter, read_checkpoint(Path(folder) / _WEIGHTS), str(Path(folder) / _WEIGHTS))
    return segmenter


def is_saved_segmenter(folder: Path) -> bool:
    """Whether :func:`save_segmenter` wrote a folder, to look at it no closer."""
    try:
        return "segmenter" in json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError, TypeError):
        return False


def _shapes(segmenter: Segmenter) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in segmenter.state_dict().items()}


def to_stored(segmenter: Segmenter) -> dict[str, Any]:
    """What makes a segmenter again but for its weights: its parts, styles of an adapted encoder, and use."""
    config = None if segmenter.config is None else segmenter.config | stored_styles(segmenter.encoder)
    return {"segmenter": config, **segmenter.normalization, **segmenter.about.stored()}


def from_stored(content: Any, source: str) -> Segmenter:
    """Make the segmenter that a configuration describes, with random weights."""
    config = content.get("segmenter") if isinstance(content, dict) else None
    if not isinstance(config, dict) or config.keys() - {ARGUMENT} != _KEYS:
        raise CheckpointError(
            f"{source} is not the configuration of a segmenter: expected {sorted(_KEYS)} under 'segmenter'"
        )
    if not isinstance(config["encoder"], str) or ":" in config["encoder"]:
        raise CheckpointError(
            f"{source}: encoder={config['encoder']!r} is not the name of a registered model"
        )
    if not isinstance(config["encoder_kwargs"], dict) or config["encoder_kwargs"].keys() & REFUSED:
        raise CheckpointError(f"{source}: encoder_kwargs={config['encoder_kwargs']!r} are not allowed")
    config = dict(config)
    styles = config.pop(ARGUMENT, None)
    try:
        segmenter = create_segmenter(**config)
        segmenter.set_normalization(content.get("mean"), content.get("std"))
        segmenter.about = About.of_stored(content, segmenter.num_classes)
        if styles is not None:
            apply_stored(segmenter.encoder, styles, source)
    except CheckpointError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{source} does not describe a segmenter: {error}") from error
    return segmenter
