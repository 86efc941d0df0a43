"""Trained models as users name them: the folder of a run, weights in a folder or file, a registered name."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
from torch import nn

from cbsa._checks import check_choice
from cbsa.adaptation.stored import ARGUMENT
from cbsa.data import DataConfig
from cbsa.models import MODELS, SHIPPED, CheckpointError, read_checkpoint
from cbsa.models.checkpoints import rename_reference_keys
from cbsa.models.registry import SIZES, UNTRAINED
from cbsa.train.assess import config_of_run
from cbsa.train.checkpoint import read_run_checkpoint, stored_config
from cbsa.train.config import ModelConfig, TrainConfig
from cbsa.train.initial import Weights, build_model, read_json, read_weights

# Families of the registry as the paper writes them, those whose name begins another's last.
_FAMILIES = {"crate_cbt": "CRATE+CBT", "vit_conv": "ViT", "cbt": "CBT", "crate": "CRATE", "agent": "Agent"}
_FAMILIES |= {"tost_cab": "ToST (original)", "tost": "ToST"}


@dataclass(frozen=True)
class Trained:
    """A model with its weights, in evaluation mode on the CPU, and how it takes images.

    Attributes:
        model: the model.
        label: what to call it beside others, such as "CBT-T".
        architecture: its name in the registry.
        data: size, channels and normalisation of its images.
        has_data: whether ``data`` names the data set it was trained on too, as that of a run does.
        weights: the file its weights come from; None if they are random.
        run: the folder of the run, if it comes from one.
    """

    model: nn.Module
    label: str
    architecture: str
    data: DataConfig
    has_data: bool
    weights: Path | None
    run: Path | None = None


def open_trained(name: str, weights: str | None = None) -> Trained:
    """Open a model.

    Args:
        name: the folder of a run (``cbsa train``), finished or not; a folder with ``model.safetensors`` and
            ``config.json`` (``cbsa convert``, a run's ``model/``; timm's ``local-dir:`` may stand before it);
            a ``.safetensors`` file beside its ``config.json``, or a run's ``.pt``; the name of weights that
            ship with the package (``cbsa weights``); or a registered name.
        weights: with a registered name, the file or folder of its weights; without, they are random.
    """
    return build_trained(find_trained(name, weights))


@dataclass(frozen=True)
class Found:
    """Where a model is, as settings of a run.

    Attributes:
        config: settings under which :func:`build_model` makes it; its weights, if there are some, among them.
        has_data: whether the settings name its data set.
        run: the folder of the run, if it comes from one.
    """

    config: TrainConfig
    has_data: bool
    run: Path | None = None


def find_trained(name: str, weights: str | None = None, known: Collection[str] = MODELS) -> Found:
    """Find a model by what :func:`open_trained` takes.

    Args:
        name: folder, file or name.
        weights: with a name, the file or folder of its weights.
        known: the names there are.
    """
    name = name.removeprefix("local-dir:")
    path = Path(name).expanduser()
    if name in SHIPPED and weights is None and not path.exists():
        return _config(None, name, MODELS)
    if name in known and not path.exists():
        return _config(name, weights, known)
    if weights is not None:
        raise ValueError(f"weights={weights!r} goes with the name of a model, and {name!r} is none")
    if not path.exists() and path.name != name:
        raise FileNotFoundError(f"model {name!r}: there is no such folder or file")
    if not path.exists():
        check_choice("model", name, [*known, *SHIPPED])  # names the nearest
    if path.is_dir() and ((path / "checkpoints").is_dir() or (path / "model").is_dir()):
        return Found(config_of_run(path), True, path)
    return _config(None, name, known)


def build_trained(found: Found) -> Trained:
    """Build a model that :func:`find_trained` found."""
    return replace(_build(found.config, found.has_data), run=found.run)


def label_of(architecture: str, model: nn.Module) -> str:
    """What the paper would call a model: family and size, or width × depth where the size is another."""
    family = next((f for f in _FAMILIES if architecture.startswith(f"{f}_")), None)
    if family is None:
        return architecture
    width, depth = int(getattr(model, "embed_dim", 0)), len(getattr(model, "blocks", ()))
    shape = next((s for s, v in SIZES.items() if (v["embed_dim"], v["depth"]) == (width, depth)), None)
    name = _FAMILIES[family]
    return f"{name} {width}×{depth}" if shape is None else f"{name}-{shape[0].upper()}"


def _config(architecture: str | None, weights: str | None, known: Collection[str]) -> Found:
    """A model by its name, or by weights that tell it."""
    if weights is None:
        assert architecture is not None
        return Found(TrainConfig(model=ModelConfig(architecture), data=_taking({}, architecture)), False)
    if Path(weights).suffix == ".pt" and Path(weights).is_file():
        config = stored_config(read_run_checkpoint(Path(weights)))
        return Found(replace(config, model=replace(config.model, weights=weights)), True)
    found = read_weights(weights)
    architecture = architecture or found.architecture
    if architecture is None:
        raise CheckpointError(
            f"{found.path} does not say which model it is for (there is no config.json beside it): give the "
            "name of the model, and this file as its weights"
        )
    beside = read_json(found.path.with_name("config.json"))
    given = beside.get("pretrained_cfg") if isinstance(beside, dict) else None
    check_choice("architecture", architecture, known)
    config = TrainConfig(
        model=ModelConfig(architecture, _own_arguments(architecture, beside), weights),
        data=_taking(given if isinstance(given, dict) else {}, architecture),
    )
    return Found(config, False)


def _own_arguments(architecture: str, beside: Any) -> dict[str, Any]:
    """Arguments of a model of timm by its ``config.json``; those of ours are read with the weights."""
    given = beside.get("model_args") if isinstance(beside, dict) and architecture not in MODELS else None
    of_the_run = (ARGUMENT, "in_chans", "num_classes")
    return {k: v for k, v in given.items() if k not in of_the_run} if isinstance(given, dict) else {}


def _taking(given: dict[str, Any], architecture: str) -> DataConfig:
    """How a model takes images, by what is stored with its weights or else by the registry."""
    default = _defaults(architecture)
    channels, side, _ = given.get("input_size") or default["input_size"]
    mean, std = (tuple(given.get(name) or default[name]) for name in ("mean", "std"))
    return DataConfig(
        img_size=side,
        in_chans=channels,
        mean=mean if len(mean) == channels else (0.5,) * channels,
        std=std if len(std) == channels else (0.5,) * channels,
        crop_pct=given.get("crop_pct") or default["crop_pct"],
        interpolation=given.get("interpolation") or default["interpolation"],
    )


def _defaults(architecture: str) -> dict[str, Any]:
    """What the registry says of a model of ours or of timm's."""
    known = f"{architecture}.{UNTRAINED}" if architecture in MODELS else architecture
    found: Any = timm.get_pretrained_cfg(known)
    values: dict[str, Any] = found.to_dict()
    return values


def _build(config: TrainConfig, has_data: bool) -> Trained:
    weights = read_weights(config.model.weights) if config.model.weights else None
    model = build_model(config, _classes(weights, config)).eval()
    return Trained(
        model,
        label_of(config.model.name, model),
        config.model.name,
        config.data,
        has_data,
        None if weights is None else weights.path,
    )


def _classes(weights: Weights | None, config: TrainConfig) -> int:
    """Number of classes that weights are for; the registry's where they do not tell."""
    tensors = {} if weights is None else weights.tensors
    if weights is not None and tensors is None:  # of the authors
        tensors = rename_reference_keys(read_checkpoint(weights.path))
    if tensors and "head.weight" in tensors:
        return len(tensors["head.weight"])
    return int(_defaults(config.model.name)["num_classes"])


def split_label(name: str) -> tuple[str, str]:
    """``LABEL=MODEL`` as its two parts; the label is empty where there is none."""
    label, equals, rest = name.partition("=")
    return (label.strip(), rest) if equals and label.strip() and not Path(name).exists() else ("", name)
