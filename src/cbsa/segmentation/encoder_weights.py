"""Weights of an encoder from files. They are untrusted: nothing in them is run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm.models.eva import checkpoint_filter_fn as eva_filter
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as vit_filter
from torch import nn

from cbsa.adaptation.stored import ARGUMENT, apply_stored
from cbsa.models import CheckpointError, ToST, Transformer, load_reference_checkpoint, read_checkpoint
from cbsa.models.checkpoints import load_weights, rename_reference_keys
from cbsa.models.shipped import shipped_or_path

_CLASSIFIERS = ("head.", "head_dist.")


# Arguments of timm.create_model that would read other files, or make something else than a model.
REFUSED = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"}
REFUSED |= {"features_only", "scriptable", "exportable", "no_jit"}


@dataclass(frozen=True)
class SavedModel:
    """A model that ``cbsa train``, ``cbsa adapt`` or ``save_model`` wrote.

    Attributes:
        folder: where it lies.
        architecture: its name in the registry.
        arguments: what else made it.
        styles: of an adapted model, what each layer was swapped for; else None.
        pretrained_cfg: how it takes images, as timm writes it.
    """

    folder: Path
    architecture: str
    arguments: dict[str, Any]
    styles: Any
    pretrained_cfg: dict[str, Any]

    @property
    def normalization(self) -> dict[str, Any]:
        """Mean and standard deviation of the images it was trained on, if they are known."""
        return {key: self.pretrained_cfg[key] for key in ("mean", "std") if self.pretrained_cfg.get(key)}

    def load_into(self, encoder: nn.Module) -> None:
        """Give a model of this architecture the weights and, if it was adapted, the styles."""
        load_encoder_weights(encoder, self.folder / "model.safetensors")
        if self.styles is not None:
            apply_stored(encoder, self.styles, str(self.folder / "config.json"))
        known = getattr(encoder, "pretrained_cfg", None) or {}
        encoder.pretrained_cfg = {**known, **self.normalization}  # type: ignore[assignment]


def saved_model(path: str | Path) -> SavedModel | None:
    """The saved model (``config.json``, ``model.safetensors``) that a path stands for, if it stands for one.

    It may be its folder, a run of ``cbsa train`` or ``cbsa adapt`` with that inside, the file of weights, or
    the name of weights that ship with the package.
    """
    given = shipped_or_path(path)
    places = (given, given / "model") if given.is_dir() else (given.parent,)
    if given.is_file() and given.name != "model.safetensors":
        return None
    for folder in places:
        if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
            return _read_saved(folder)
    return None


def _read_saved(folder: Path) -> SavedModel:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        name, arguments = config["architecture"], dict(config.get("model_args") or {})
        pretrained_cfg = dict(config.get("pretrained_cfg") or config)  # older ones have it all in one
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the configuration of an encoder ({error!r})") from error
    if not isinstance(name, str) or ":" in name or arguments.keys() & REFUSED:
        raise CheckpointError(f"{path}: architecture={name!r} with model_args={arguments} is not allowed")
    arguments.pop("num_classes", None)
    return SavedModel(folder, name, arguments, arguments.pop(ARGUMENT, None), pretrained_cfg)


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> None:
    """Load a file of weights into an encoder without a classifier; that of the file is left out.

    For a model of ours the file may also be one of the authors', CRATE's or ToST's.
    """
    path = Path(path)
    if path.is_dir():
        raise FileNotFoundError(
            f"{path} is a folder without config.json and model.safetensors, in it or in its model/"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"weights of the encoder: {path}: no such file or folder, nor weights that ship with cbsa "
            "(`cbsa weights` lists them)"
        )
    if path.suffix == ".pt":
        raise CheckpointError(
            f"{path}: a checkpoint of a run does not say all about its model; give the folder of the run"
        )
    tensors = read_checkpoint(path)
    if isinstance(encoder, (Transformer, ToST)):
        if rename_reference_keys(tensors).keys() != tensors.keys():
            load_reference_checkpoint(encoder, path)  # type: ignore[type-var]
            return
    else:
        fit = vit_filter if isinstance(encoder, VisionTransformer) else eva_filter
        tensors = fit(tensors, encoder)  # type: ignore[no-untyped-call,arg-type]
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_CLASSIFIERS)}
    load_weights(encoder, own, str(path))
