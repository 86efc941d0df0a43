"""What layers with an inference form (``fuse``) have in common."""

from typing import Any, Protocol


class Fusible(Protocol):
    """A layer with an inference form, which is computed from its parameters once."""

    fused: bool

    def fuse(self) -> None:
        """Compute the inference form."""


def fuse_anew(layer: Fusible, _: Any) -> None:
    """Hook for after ``load_state_dict``: the inference form follows the parameters that were loaded."""
    if layer.fused:
        layer.fuse()
