"""Weights in and out: safetensors of ours, and the checkpoints of the authors, of CRATE and of ToST.

Files are untrusted: pickles are read with ``weights_only=True`` alone, so no code in them runs.
"""

import argparse
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cbsa.layers import CBSA
from cbsa.models.tost import ToST, rename_original_keys
from cbsa.models.transformer import Transformer
from cbsa.ops import resample_tokens

AnyModel = TypeVar("AnyModel", Transformer, ToST)

MAX_BYTES = 8 << 30  # no checkpoint of these models comes near

# From the authors' names (and CRATE's, ToST's) to ours, in order.
_RENAMES = [
    (r"^((module|_orig_mod)\.)+", ""),  # DistributedDataParallel and torch.compile, in either order
    (r"^pos_embedding$", "pos_embed"),
    (r"^to_patch_embedding\.proj\.", "patch_embed.proj."),
    (r"^to_patch_embedding\.1\.", "patch_embed.norm_pixels."),
    (r"^to_patch_embedding\.2\.", "patch_embed.proj."),
    (r"^to_patch_embedding\.3\.", "patch_embed.norm."),
    (r"^transformer\.layers\.(\d+)\.0\.norm\.", r"blocks.\1.norm1."),
    (r"^transformer\.layers\.(\d+)\.0\.fn\.", r"blocks.\1.attn."),
    (r"^transformer\.layers\.(\d+)\.1\.norm\.", r"blocks.\1.norm2."),
    (r"^transformer\.layers\.(\d+)\.1\.fn\.", r"blocks.\1.ff."),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
    (r"^(blocks\.\d+)\.attn\.qkv\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.attn\.to_out\.0\.", r"\1.attn.to_out."),
    (r"\.attn\.(step_x|ss_x)$", ".attn.step_out"),
    (r"\.attn\.ss_rep$", ".attn.step_rep"),
]


class CheckpointError(ValueError):
    """A checkpoint file that cannot be read or does not fit."""


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a ``.safetensors`` file or of a PyTorch checkpoint (``weights_only``).

    A checkpoint is a state dict, or a dict with one under ``state_dict``, ``model`` or ``state_dict_ema``.
    The arguments of the training script (``argparse.Namespace``), which the code of ToST, DeiT and timm puts
    beside it, are data too.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, more than the limit of {MAX_BYTES}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if found := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
            raise CheckpointError(
                f"{path} holds a {found[1]}; it was not loaded, since that could run code. If you trust the "
                f"file, keep its tensors alone: torch.save(torch.load({path.name!r}, weights_only=False)"
                "['state_dict'], 'tensors.pth')"
            ) from error
        raise CheckpointError(
            f"{path} is not a checkpoint, or holds more than tensors; it was not loaded, since that could "
            "run code"
        ) from error
    except Exception as error:  # a file from outside may break its reader in any way
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise CheckpointError(f"{path} is truncated or not a checkpoint ({reason})") from error
    for key in ("state_dict", "model", "state_dict_ema"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors by name")
    return tensors


def rename_reference_keys(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of an authors', CRATE's or ToST-twin's checkpoint our names and shapes."""
    renamed = {}
    for key, value in state_dict.items():
        for pattern, name in _RENAMES:
            key = re.sub(pattern, name, key)
        if key.endswith((".step_out", ".step_rep")):
            value = value.flatten()  # (H, 1, 1) there
        renamed[key] = value
    return renamed


def fit_positions(state_dict: dict[str, Tensor], model: Transformer) -> dict[str, Tensor]:
    """Resample the position embedding of a state dict, made for a square image, to the model's grid."""
    positions = state_dict.get("pos_embed")
    if positions is None or positions.shape == model.pos_embed.shape or positions.dim() != 3:
        return state_dict
    side = round((positions.shape[1] - 1) ** 0.5)
    if side * side != positions.shape[1] - 1 or positions.shape[2] != model.embed_dim:
        return state_dict  # for load_state_dict to report
    positions = positions.to(model.pos_embed.dtype)  # weights may be stored in bfloat16
    patches = resample_tokens(positions[:, 1:], (side, side), model.grid)
    return state_dict | {"pos_embed": torch.cat([positions[:, :1], patches], 1)}


def load_weights(model: torch.nn.Module, state_dict: dict[str, Tensor], source: str) -> None:
    """Load a state dict in our names; if it does not fit, say which tensors disagree."""
    if isinstance(model, Transformer):
        state_dict = fit_positions(state_dict, model)
    _check_fit(model.state_dict(), state_dict, source)
    model.load_state_dict(state_dict)


def _check_fit(own: dict[str, Tensor], state_dict: dict[str, Tensor], source: str) -> None:
    """Check that a state dict has the names and shapes of a model's ``own``; say which disagree."""
    missing = [k for k in own if k not in state_dict]
    unknown = [k for k in state_dict if k not in own]
    shapes = [
        f"{k} is {tuple(state_dict[k].shape)} there and {tuple(v.shape)} here"
        for k, v in own.items()
        if k in state_dict and state_dict[k].shape != v.shape
    ]
    problems = [
        f"{len(names)} {what}: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit this model. {'; '.join(problems)}")


def load_reference_checkpoint(model: AnyModel, path: str | Path) -> AnyModel:
    """Load a checkpoint of the authors' code, of CRATE or of ToST into a model of ours.

    The authors' CBT learned with a shifted pooling, so CBSA layers are switched to ``legacy_pool=True``,
    which is recorded in the model's configuration. The classifier takes the number of classes of the file.

    Args:
        model: a model of the same architecture, e.g. ``cbsa.create_model("cbt_small_patch16_224")``.
        path: ``.pth.tar`` or ``.pth`` file.

    Returns:
        The model. If the file does not fit, the model stays as it was.
    """
    if not isinstance(model, (Transformer, ToST)):
        raise TypeError(
            f"model must be one of cbsa.create_model (without features_only), got {type(model).__name__}"
        )
    state_dict = rename_reference_keys(read_checkpoint(path))
    if isinstance(model, ToST):
        state_dict = rename_original_keys(state_dict, model)
    else:
        state_dict = fit_positions(state_dict, model)
    head = state_dict.get("head.weight")
    if head is not None and head.dim() == 2 and head.shape[0] != model.num_classes:
        classifier = torch.nn.Linear(model.num_features, head.shape[0], device="meta")
        with_it = model.state_dict() | {f"head.{k}": v for k, v in classifier.state_dict().items()}
        _check_fit(with_it, state_dict, str(path))
        model.reset_classifier(head.shape[0])
    load_weights(model, state_dict, str(path))
    pooling = [m for m in model.modules() if isinstance(m, CBSA) and m.init == "pool"]
    for layer in pooling:
        layer.legacy_pool = True
    if pooling and isinstance(model, Transformer):
        model.record(legacy_pool=True)
    return model


def model_arguments(model: torch.nn.Module) -> dict[str, Any]:
    """Arguments a model was made with or has come to have, beyond what its name says.

    A layout of representatives, or the pooling, leaves no trace in the shapes of the weights. What belongs to
    the data (classes, channels, size) is left out. Models of timm do not tell: theirs are none.
    """
    if not isinstance(model, (Transformer, ToST)):
        return {}
    arguments: dict[str, Any] = dict(
        model.arguments if isinstance(model, ToST) else getattr(model, "_hub_mixin_config", None) or {}
    )
    arguments |= {"global_pool": model.global_pool}
    if _pools_as_authors(model):
        arguments["legacy_pool"] = True
    for key in ("num_classes", "in_chans", "img_size", "device", "dtype"):
        arguments.pop(key, None)
    return arguments


def save_model(
    model: Transformer | ToST,
    folder: str | Path,
    *,
    architecture: str,
    card: str | None = None,
    classes: Sequence[str] = (),
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a model as timm's ``local-dir:`` and ``hf-hub:`` expect it.

    Args:
        model: the model.
        folder: ``model.safetensors``, ``config.json`` and ``README.md`` (a model card) are written into it.
        architecture: its name in the registry.
        card: text of the card; by default a skeleton to be filled in.
        classes: names of the classes.
        dtype: what to round floating-point numbers to, e.g. ``torch.bfloat16``; by default they stay as they
            are.

    Returns:
        The folder.
    """
    if classes and len(classes) != model.num_classes:
        raise ValueError(f"there are {len(classes)} names for the {model.num_classes} classes of the model")
    pretrained_cfg = dict(getattr(model, "pretrained_cfg", None) or {})
    for key in ("url", "hf_hub_id", "file", "source", "architecture", "tag", "custom_load", "label_names"):
        pretrained_cfg.pop(key, None)
    channels = model.patch_embed.in_chans if isinstance(model, Transformer) else model.in_chans
    pretrained_cfg |= {"input_size": [channels, *model.img_size], "num_classes": model.num_classes}
    config = {
        "architecture": architecture,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": model.global_pool,
        "model_args": model_arguments(model) | {"img_size": list(model.img_size)},
        "pretrained_cfg": pretrained_cfg,
    }
    if classes:
        config["label_names"] = list(classes)  # timm's word
    folder = _write(model, Path(folder), config, dtype)
    (folder / "README.md").write_text(card if card is not None else _card(model, architecture))
    return folder


def save_timm_model(
    model: torch.nn.Module,
    folder: str | Path,
    *,
    architecture: str,
    arguments: dict[str, Any],
    transform: dict[str, Any],
) -> Path:
    """Write a model of timm (``model.safetensors``, ``config.json``) as its ``local-dir:`` expects it.

    Args:
        model: the model.
        folder: where to.
        architecture: its name in timm's registry.
        arguments: what it was made with beside classes and channels, and what else makes the same model.
        transform: how it takes images: ``input_size``, ``mean``, ``std``, ``crop_pct``, ``interpolation``.

    Returns:
        The folder.
    """
    known = dict(getattr(model, "pretrained_cfg", None) or {})
    kept = {key: known[key] for key in ("classifier", "first_conv", "pool_size") if key in known}
    config = {
        "architecture": architecture,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": {**arguments, "in_chans": transform["input_size"][0]},
        "pretrained_cfg": {**kept, **transform, "num_classes": model.num_classes},
    }
    return _write(model, Path(folder), config)


def _write(
    model: torch.nn.Module, folder: Path, config: dict[str, Any], dtype: torch.dtype | None = None
) -> Path:
    """Write the weights, floating-point ones in ``dtype`` if it is given, and what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        k: v.detach().to("cpu", dtype if v.is_floating_point() else None).contiguous()
        for k, v in model.state_dict().items()
    }
    about = {"format": "pt", "architecture": config["architecture"]}
    save_file(tensors, folder / "model.safetensors", metadata=about)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def _pools_as_authors(model: torch.nn.Module) -> bool:
    """Whether some layer of a model pools with the shift of the authors' code."""
    return any(isinstance(m, CBSA) and m.legacy_pool for m in model.modules())


def _card(model: Transformer | ToST, architecture: str) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    return f"""---
library_name: timm
tags: [image-classification, timm, cbsa]
---
# {architecture}

{parameters:,} parameters, {model.num_classes} classes, {model.img_size[0]}×{model.img_size[1]} px.
{"Pools as the authors' code does (`legacy_pool=True`)." if _pools_as_authors(model) else ""}

```python
import cbsa.models, timm
model = timm.create_model("local-dir:PATH/OF/THIS/FOLDER", pretrained=True)
```

To be filled in: data, recipe and command, seed, accuracy, limits, licence of data and weights.
"""
