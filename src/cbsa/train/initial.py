"""What a run starts with: random numbers, and the model with its weights."""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from cbsa._checks import did_you_mean
from cbsa.adaptation.stored import ARGUMENT, apply_stored, stored_styles
from cbsa.models import (
    MODELS,
    CheckpointError,
    ToST,
    Transformer,
    load_reference_checkpoint,
    read_checkpoint,
)
from cbsa.models.checkpoints import load_weights, model_arguments
from cbsa.models.shipped import shipped_or_path
from cbsa.train.checkpoint import read_run_checkpoint, stored_config
from cbsa.train.config import TrainConfig

# Arguments of timm.create_model that are the run's own business, whatever is stored with some weights.
_OF_THE_RUN = {
    "num_classes",
    "in_chans",
    "img_size",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
}
_OF_THE_RUN |= {"checkpoint_path", "cache_dir"}


def build_model(config: TrainConfig, num_classes: int) -> nn.Module:
    """Create the model of a run for a number of classes, with its initial weights if it has some.

    Weights of an adapted model come with its styles. Other arguments of timm's models are the run's alone.
    """
    arguments: dict[str, Any] = {"in_chans": config.data.in_chans, "num_classes": num_classes}
    weights = read_weights(config.model.weights) if config.model.weights else None
    if weights is not None and weights.architecture not in (None, config.model.name):
        raise CheckpointError(
            f"{weights.path} holds weights of {weights.architecture!r}, but model.name is "
            f"{config.model.name!r}; set model.name={weights.architecture}"
        )
    if config.model.name in MODELS:
        arguments |= {} if weights is None else weights.arguments
        arguments["img_size"] = config.data.img_size
    arguments |= config.model.kwargs
    try:
        model: nn.Module = timm.create_model(config.model.name, **arguments)
    except TypeError as error:
        raise ValueError(f"model.kwargs={config.model.kwargs}: {error}") from error
    except RuntimeError as error:
        if "Unknown model" not in str(error):
            raise
        raise ValueError(
            f"model.name={config.model.name!r}: no such model; see `cbsa models` and timm.list_models()"
            f"{did_you_mean(config.model.name, timm.list_models())}"
        ) from error
    if weights is not None:
        load_weights_into(model, weights, num_classes)
        _adapt_as_stored(model, weights)
    if config.model.checkpointing is not None:
        model.set_grad_checkpointing(config.model.checkpointing)  # type: ignore[operator]
    return model


def arguments_of(model: nn.Module) -> dict[str, Any]:
    """What no name and no tensor shows of a model: arguments of ours, styles of an adapted one."""
    return model_arguments(model) | stored_styles(model)


def seed_everything(seed: int) -> None:
    """Seed all generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # timm's mixup draws from it
    torch.manual_seed(seed)


@contextmanager
def kernels(deterministic: bool) -> Iterator[None]:
    """Let PyTorch try out the fastest kernels, or take deterministic ones alone; undone at the end."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


@dataclass(frozen=True)
class Weights:
    """Weights on disk, and what the file or its neighbour says of the model they are for.

    Attributes:
        path: the file.
        tensors: tensors by our names, or by timm's for its models; None for a file of the authors.
        architecture: name of the model, if known.
        arguments: arguments the model was made with, e.g. a layout of representatives: no tensor shows it.
    """

    path: Path
    tensors: dict[str, Tensor] | None = None
    architecture: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


def read_weights(path: str) -> Weights:
    """Read weights that a run can start from; see :class:`cbsa.train.ModelConfig`."""
    file = _find_weights(path)
    if file.suffix == ".pt":
        content = read_run_checkpoint(file)
        tensors = content.get("average", content["model"])
        given = json.loads(content.get("model_args", "{}"))
        saved: Any = {"architecture": stored_config(content).model.name, "model_args": given}
    elif file.suffix == ".safetensors":
        tensors, saved = read_checkpoint(file), read_json(file.with_name("config.json"))
    else:
        return Weights(file)
    arguments = saved.get("model_args", {}) if isinstance(saved, dict) else None
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{file}: what is stored with it is not the configuration of a model")
    arguments = {name: value for name, value in arguments.items() if name not in _OF_THE_RUN}
    return Weights(file, tensors, saved.get("architecture"), arguments)


def load_weights_into(model: nn.Module, weights: Weights, num_classes: int) -> None:
    """Load weights into a model; one of another number of classes than they are for gets a new classifier."""
    if weights.tensors is None:
        if not isinstance(model, (Transformer, ToST)):
            raise ValueError(
                f"model.weights={str(weights.path)!r}: for timm's {type(model).__name__} it must be a "
                ".safetensors or .pt file of a run; others load by model.kwargs.checkpoint_path=FILE"
            )
        load_reference_checkpoint(model, weights.path)  # type: ignore[type-var]
    else:
        name = _name_of_classifier(getattr(model, "pretrained_cfg", None))
        classifier = weights.tensors.get(f"{name}.weight")
        if classifier is not None and len(classifier) != model.num_classes:
            model.reset_classifier(len(classifier))  # type: ignore[operator]
        if isinstance(model, (Transformer, ToST)):
            load_weights(model, weights.tensors, str(weights.path))
        else:
            try:
                model.load_state_dict(weights.tensors)
            except RuntimeError as error:
                raise CheckpointError(f"{weights.path} does not fit this model. {error}") from error
    if model.num_classes != num_classes:
        model.reset_classifier(num_classes)  # type: ignore[operator]


def _adapt_as_stored(model: nn.Module, weights: Weights) -> None:
    """Give a model the styles that are stored with its weights, if there are some."""
    if ARGUMENT in weights.arguments:
        apply_stored(model, weights.arguments[ARGUMENT], str(weights.path))


def original_classes(config: TrainConfig) -> int | None:
    """How many classes the weights are for that a model of timm starts from; None if they do not tell."""
    given: Any = timm.get_pretrained_cfg(config.model.name)
    if config.model.weights is None:
        return None if given is None else int(given.num_classes)
    tensors = read_weights(config.model.weights).tensors or {}
    name = _name_of_classifier({} if given is None else given.to_dict())
    classifier = tensors.get(f"{name}.weight")
    return None if classifier is None else len(classifier)


def _name_of_classifier(pretrained_cfg: Any) -> str:
    """Name of the classifier, or of the first of several, as timm tells it."""
    name: Any = (pretrained_cfg or {}).get("classifier") or "head"
    return name if isinstance(name, str) else str(name[0])


def _find_weights(path: str) -> Path:
    """The file of weights that a file, a folder or the name of shipped ones stands for."""
    given = shipped_or_path(path)
    candidates = (given, given / "model" / "model.safetensors", given / "model.safetensors")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"model.weights={path!r}: no such file, nor a folder with model.safetensors in it or in its model/, "
        "nor weights that ship with cbsa (`cbsa weights` lists them)"
    )


def read_json(path: Path) -> Any:
    """Content of a JSON file; nothing if there is none."""
    try:
        return json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path} is not the configuration of a model ({error})") from error
