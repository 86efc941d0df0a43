"""The styles of an adapted model as plain values, stored with its weights: no tensor shows them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import timm
from torch import nn

from cbsa.adaptation.adapt import adapt
from cbsa.adaptation.style import Style
from cbsa.adaptation.timm_attention import AdaptedAttention
from cbsa.models.checkpoints import CheckpointError, read_checkpoint

ARGUMENT = "adapted"  # timm knows no such argument: it refuses the model rather than run it with softmax
_STORED = tuple(field.name for field in fields(Style) if field.name != "impl")
Model = TypeVar("Model", bound=nn.Module)


def stored_styles(model: nn.Module) -> dict[str, Any]:
    """The style of each layer, None for softmax, as an argument of the model; nothing if none is adapted."""
    attentions = [getattr(block, "attn", None) for block in getattr(model, "blocks", ())]
    layers = [_stored(a.style) if isinstance(a, AdaptedAttention) else None for a in attentions]
    return {ARGUMENT: layers} if any(layers) else {}


def apply_stored(model: Model, layers: Any, where: str) -> Model:
    """Adapt a model as :func:`stored_styles` tells; what was stored is not trusted.

    Args:
        model: a ViT with softmax attention, changed in place.
        layers: what was stored: a style or None for each layer.
        where: the file it comes from, for messages.
    """
    depth = len(getattr(model, "blocks", ()))
    if not isinstance(layers, list) or len(layers) != depth:
        found = f"{len(layers)} layers" if isinstance(layers, list) else repr(layers)
        raise CheckpointError(f"{where}: {ARGUMENT!r} must be a list of {depth} styles, got {found}")
    for index, options in enumerate(layers):
        if options is None:
            continue
        if not isinstance(options, Mapping) or "name" not in options or not set(options) <= set(_STORED):
            raise CheckpointError(f"{where}: the style of layer {index} is {options!r}")
        rest = {name: value for name, value in options.items() if name != "name"}
        try:
            adapt(model, options["name"], layers=[index], **rest)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: layer {index}: {error}") from error
    return model


def load_adapted(folder: str | Path) -> nn.Module:
    """Load a model of timm that ``cbsa adapt`` or ``cbsa train`` wrote, its styles included.

    Args:
        folder: ``model/`` of a run, with ``model.safetensors`` and ``config.json``.
    """
    folder = Path(folder)
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        name, classes, arguments = config["architecture"], config["num_classes"], dict(config["model_args"])
    except OSError as error:
        raise FileNotFoundError(f"{path}: {error.strerror}; expected the folder model/ of a run") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the configuration of a model ({error})") from error
    layers = arguments.pop(ARGUMENT, None)
    try:
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **arguments)
        model.load_state_dict(read_checkpoint(folder / "model.safetensors"))
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(f"{folder} does not hold the model it names. {error}") from error
    return model if layers is None else apply_stored(model, layers, str(path))


def _stored(style: Style) -> dict[str, Any] | None:
    """A style without its implementation, as JSON gives it back."""
    if style.name == "softmax":
        return None
    values = asdict(style)
    return {name: list(values[name]) if isinstance(values[name], tuple) else values[name] for name in _STORED}
