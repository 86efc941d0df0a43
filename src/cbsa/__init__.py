"""Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention and what is built on it."""

from cbsa import layers, objective, ops
from cbsa._version import __version__

__all__ = ["__version__", "layers", "objective", "ops"]
