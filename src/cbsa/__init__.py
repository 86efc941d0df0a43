"""Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention and what is built on it."""

import importlib
from typing import TYPE_CHECKING, Any

from cbsa import layers, objective, ops
from cbsa._version import __version__

if TYPE_CHECKING:
    from cbsa import models
    from cbsa.models import create_model

__all__ = ["__version__", "create_model", "layers", "models", "objective", "ops"]


def __getattr__(name: str) -> Any:
    """Import what needs more than torch when it is first used."""
    if name == "models":
        return importlib.import_module("cbsa.models")
    if name == "create_model":
        return importlib.import_module("cbsa.models").create_model
    raise AttributeError(f"module 'cbsa' has no attribute {name!r}")
