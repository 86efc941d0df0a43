"""Checks of what callers hand in, with errors that name the value and what was expected."""

import difflib
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor


def check_choice(argument: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise raise, naming the nearest ones."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a string, got {value!r} of type {type(value).__name__}")
    if value not in choices:
        nearest = difflib.get_close_matches(value, choices, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        raise ValueError(f"{argument}={value!r}: expected one of {', '.join(map(repr, choices))}{hint}")
    return value


def check_int(argument: str, value: object, at_least: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{argument} must be an integer, got {value!r} of type {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{argument} must be at least {at_least}, got {value}")
    return value  # type: ignore[return-value]  # a SymInt stands for an int while tracing


def check_positive_float(argument: str, value: object) -> float:
    """Return ``value`` if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} must be a number, got {value!r} of type {type(value).__name__}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{argument} must be finite and above 0, got {value}")
    return float(value)


def check_sizes(argument: str, value: object) -> tuple[int, ...]:
    """Return a token layout, such as ``(14, 14)``, as a tuple; an integer is a one-dimensional one."""
    if isinstance(value, (int, torch.SymInt)):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) == 0:
        raise TypeError(f"{argument} must be an integer or a non-empty sequence of integers, got {value!r}")
    return tuple(check_int(f"{argument}[{axis}]", size) for axis, size in enumerate(value))


def check_grid(grid: int | Sequence[int] | None, num_tokens: int, rank: int = 2) -> tuple[int, ...]:
    """Return the layout of ``num_tokens`` patch tokens; ``None`` stands for ``rank`` equal sides."""
    if grid is not None:
        sizes = check_sizes("grid", grid)
        if math.prod(sizes) != num_tokens:
            raise ValueError(
                f"grid={sizes} holds {math.prod(sizes)} tokens, but there are {num_tokens} patch tokens"
            )
        return sizes
    side = round(num_tokens ** (1 / rank))
    if side**rank != num_tokens:
        shape = {2: "a square", 3: "a cube"}.get(rank, f"{rank} equal sides")
        raise ValueError(f"{num_tokens} patch tokens do not form {shape}: give their layout as grid=")
    return (side,) * rank


def check_mask(mask: Tensor | None, batch: int, num_tokens: int) -> Tensor | None:
    """Return ``mask`` if it is a boolean (B, N) tensor, True for a real token and False for padding."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = a real token), got {kind}")
    if mask.shape != (batch, num_tokens):
        raise ValueError(f"mask must have shape (B, N) = {(batch, num_tokens)}, got {tuple(mask.shape)}")
    return mask


def check_floating(argument: str, value: object) -> Tensor:
    """Return ``value`` if it is a real floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{argument} must be a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{argument} must be of a real floating-point dtype, got {value.dtype}")
    return value
