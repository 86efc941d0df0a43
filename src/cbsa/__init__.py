"""Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention and what is built on it."""

import importlib
from typing import TYPE_CHECKING, Any

from cbsa import layers, objective, ops
from cbsa._version import __version__

if TYPE_CHECKING:
    from cbsa import adaptation, models, parallel, segmentation
    from cbsa.adaptation import adapt
    from cbsa.models import create_model

__all__ = [
    "__version__",
    "adapt",
    "adaptation",
    "create_model",
    "layers",
    "models",
    "objective",
    "ops",
    "parallel",
    "segmentation",
]


def __getattr__(name: str) -> Any:
    """Import what needs more than torch when it is first used."""
    if name in ("adaptation", "models", "parallel", "segmentation"):
        return importlib.import_module(f"cbsa.{name}")
    if name == "create_model":
        return importlib.import_module("cbsa.models").create_model
    if name == "adapt":
        return importlib.import_module("cbsa.adaptation").adapt
    raise AttributeError(f"module 'cbsa' has no attribute {name!r}")
