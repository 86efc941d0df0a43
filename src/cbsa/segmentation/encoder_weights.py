"""Weights of an encoder from files. They are untrusted: nothing in them is run."""

from pathlib import Path

from timm.models.eva import checkpoint_filter_fn as eva_filter
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as vit_filter
from torch import nn

from cbsa.models import CheckpointError, ToST, Transformer, load_reference_checkpoint, read_checkpoint
from cbsa.models.checkpoints import load_weights, rename_reference_keys

_CLASSIFIERS = ("head.", "head_dist.")


def saved_model(path: str | Path) -> Path | None:
    """The folder of a saved model (``config.json``, ``model.safetensors``) that a path stands for, if one.

    It may be that folder, a run of ``cbsa train`` with it inside, or the file of weights in it.
    """
    given = Path(path)
    places = (given, given / "model") if given.is_dir() else (given.parent,)
    if given.is_file() and given.name != "model.safetensors":
        return None
    for folder in places:
        if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
            return folder
    return None


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> None:
    """Load a file of weights into an encoder without a classifier; that of the file is left out.

    For a model of ours the file may also be one of the authors', CRATE's or ToST's.
    """
    path = Path(path)
    if path.is_dir():
        raise FileNotFoundError(
            f"{path} is a folder without config.json and model.safetensors, in it or in its model/"
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
