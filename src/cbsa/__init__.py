"""Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention and what is built on it."""

import importlib
from typing import TYPE_CHECKING, Any

from cbsa import layers, objective, ops
from cbsa._version import __version__

if TYPE_CHECKING:
    from cbsa import adaptation, analysis, data, explain, models, parallel, report, segmentation, train
    from cbsa.adaptation import adapt
    from cbsa.models import create_model

__all__ = [
    "__version__",
    "adapt",
    "adaptation",
    "analysis",
    "create_model",
    "data",
    "explain",
    "layers",
    "models",
    "objective",
    "ops",
    "parallel",
    "report",
    "segmentation",
    "train",
]

_FUNCTIONS = {"adapt": "adaptation", "create_model": "models"}  # name -> where it comes from


def __getattr__(name: str) -> Any:
    """Import what needs more than torch when it is first used."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"cbsa.{_FUNCTIONS[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"cbsa.{name}")
    raise AttributeError(f"module 'cbsa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
