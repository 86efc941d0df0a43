"""What a run starts with: random numbers, and the model with its weights."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from cbsa.models import (
    MODELS,
    CheckpointError,
    ToST,
    Transformer,
    load_reference_checkpoint,
    read_checkpoint,
)
from cbsa.models.checkpoints import load_weights
from cbsa.train.checkpoint import read_run_checkpoint
from cbsa.train.config import TrainConfig


def build_model(config: TrainConfig, num_classes: int) -> nn.Module:
    """Create the model of a run for a number of classes, with its initial weights if it has some."""
    arguments: dict[str, Any] = {"in_chans": config.data.in_chans, "num_classes": num_classes}
    source = _find_weights(config.model.weights) if config.model.weights else None
    if source is not None:
        arguments |= _saved_arguments(source, config.model.name)
    if config.model.name in MODELS:
        arguments["img_size"] = config.data.img_size
    arguments |= config.model.kwargs
    try:
        model: nn.Module = timm.create_model(config.model.name, **arguments)
    except TypeError as error:
        raise ValueError(f"model.kwargs={config.model.kwargs}: {error}") from error
    except RuntimeError as error:
        if "Unknown model" not in str(error):
            raise
        raise ValueError(f"model.name={config.model.name!r}: no such model; see `cbsa models`") from error
    if source is not None:
        load_initial_weights(model, source, num_classes)
    if config.model.checkpointing:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    return model


def seed_everything(config: TrainConfig) -> None:
    """Seed all generators, and choose between fast and deterministic kernels."""
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002  # timm's mixup draws from it
    torch.manual_seed(config.seed)
    torch.use_deterministic_algorithms(config.runtime.deterministic)
    torch.backends.cudnn.benchmark = not config.runtime.deterministic
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def compile_blocks(model: nn.Module) -> None:
    """Compile stem and blocks in place: one compilation serves all blocks, and names stay as they are."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        model.compile()  # type: ignore[no-untyped-call]
        return
    for block in blocks:
        block.compile()
    model.patch_embed.compile()  # type: ignore[operator, union-attr]


def load_initial_weights(model: nn.Module, source: Path, num_classes: int) -> None:
    """Load weights from a file of ours or of the authors; another number of classes gets a new classifier."""
    if source.suffix not in (".safetensors", ".pt"):
        if not isinstance(model, (Transformer, ToST)):
            raise ValueError(
                f"model.weights={str(source)!r}: for timm's {type(model).__name__} it must be a "
                ".safetensors or .pt file of a run; others load by model.kwargs.checkpoint_path=FILE"
            )
        load_reference_checkpoint(model, source)  # type: ignore[type-var]
    else:
        tensors = _read_weights(source)
        head = tensors.get("head.weight")
        if head is not None and len(head) != model.num_classes:
            model.reset_classifier(len(head))  # type: ignore[operator]
        if isinstance(model, (Transformer, ToST)):
            load_weights(model, tensors, str(source))
        else:
            model.load_state_dict(tensors)
    if model.num_classes != num_classes:
        model.reset_classifier(num_classes)  # type: ignore[operator]


def _read_weights(source: Path) -> dict[str, Tensor]:
    """Tensors of a ``.safetensors`` file, or of a run's checkpoint: the averaged weights if it has them."""
    if source.suffix == ".safetensors":
        return read_checkpoint(source)
    content = read_run_checkpoint(source)
    weights: dict[str, Tensor] = content.get("average", content["model"])
    return weights


def _find_weights(path: str) -> Path:
    """The file of weights that a file or folder stands for."""
    given = Path(path)
    candidates = (given, given / "model" / "model.safetensors", given / "model.safetensors")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"model.weights={path!r}: no such file, nor a folder with model.safetensors in it or in its model/"
    )


def _saved_arguments(source: Path, name: str) -> dict[str, Any]:
    """Arguments that the saved model was made with, e.g. a layout of representatives: no weight shows it."""
    path = source.with_name("config.json")
    if source.suffix != ".safetensors" or not path.is_file():
        return {}
    saved = json.loads(path.read_text())
    if not isinstance(saved, dict) or not isinstance(saved.get("model_args", {}), dict):
        raise CheckpointError(f"{path} is not the configuration of a model")
    if saved.get("architecture") not in (None, name):
        raise CheckpointError(
            f"{source} holds weights of {saved['architecture']!r}, but model.name is {name!r}; set "
            f"model.name={saved['architecture']}"
        )
    return {k: v for k, v in saved.get("model_args", {}).items() if k != "img_size"}
