"""The models. Importing this registers them with timm; then ``timm.create_model(name)`` works."""

from typing import Any

import timm

from cbsa._checks import check_choice
from cbsa.models.block import Block
from cbsa.models.checkpoints import (
    CheckpointError,
    load_reference_checkpoint,
    read_checkpoint,
    save_model,
)
from cbsa.models.registry import MODELS, checkpoint_filter_fn
from cbsa.models.shipped import SHIPPED, Shipped
from cbsa.models.tost import ToST
from cbsa.models.transformer import Transformer

__all__ = [
    "MODELS",
    "SHIPPED",
    "Block",
    "CheckpointError",
    "Shipped",
    "ToST",
    "Transformer",
    "checkpoint_filter_fn",
    "create_model",
    "load_reference_checkpoint",
    "read_checkpoint",
    "save_model",
]


def create_model(name: str, pretrained: bool = False, **kwargs: Any) -> Any:
    """Create a registered model: ``timm.create_model`` for the models of this package.

    Args:
        name: a name of ``MODELS``, with a tag (a name of ``SHIPPED``) for one of several weights, or
            ``local-dir:…`` / ``hf-hub:…`` as in timm.
        pretrained: load its weights; those of ``SHIPPED`` are in the package.
        kwargs: arguments of :class:`Transformer`, and timm's (``features_only=True``, …).

    Returns:
        A :class:`Transformer` (:class:`ToST` for ``tost_cab_…``), or timm's wrapper for features.
    """
    if not isinstance(name, str) or ":" not in name:
        check_choice("name", name.partition(".")[0] if isinstance(name, str) else name, MODELS)
    return timm.create_model(name, pretrained=pretrained, **kwargs)
