"""Checks of what callers hand in, with errors that name the value and what was expected."""

import difflib
import math
import numbers
import operator
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

_MOST_SHOWN = 12  # choices that an error lists


def check_choice(argument: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise raise, naming the nearest ones."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a string, got {value!r} of type {type(value).__name__}")
    if value not in choices:
        shown = ", ".join(map(repr, list(choices)[:_MOST_SHOWN]))
        more = f", … ({len(choices)} in all)" if len(choices) > _MOST_SHOWN else ""
        raise ValueError(f"{argument}={value!r}: expected one of {shown}{more}{did_you_mean(value, choices)}")
    return value


def did_you_mean(value: str, choices: Collection[str]) -> str:
    """The end of an error about a name that is none of ``choices``: the nearest ones, if any is near."""
    nearest = difflib.get_close_matches(value, choices, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""


def check_int(argument: str, value: object, at_least: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``at_least``."""
    if not isinstance(value, (int, torch.SymInt)) and hasattr(value, "__index__"):
        value = operator.index(value)  # NumPy's integers
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{argument} must be an integer, got {value!r} of type {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{argument} must be at least {at_least}, got {value}")
    return value  # type: ignore[return-value]  # a SymInt stands for an int while tracing


def check_number(argument: str, value: object, at_least: float | None = None) -> float:
    """Return ``value`` if it is a finite real number, of at least ``at_least`` if that is given."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real, torch.SymFloat)):
        raise TypeError(f"{argument} must be a number, got {value!r} of type {type(value).__name__}")
    if not -math.inf < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{argument} must be finite, got {value}")
    if at_least is not None and value < at_least:  # type: ignore[operator]
        raise ValueError(f"{argument} must be at least {at_least}, got {value}")
    return value  # type: ignore[return-value]  # a SymFloat stands for a float while tracing


def check_positive_number(argument: str, value: object) -> float:
    """Return ``value`` if it is a finite number above 0."""
    number = check_number(argument, value)
    if not number > 0:
        raise ValueError(f"{argument} must be above 0, got {number}")
    return number


def check_share(argument: str, value: object) -> float:
    """Return ``value`` if it is a number above 0, 1 at most."""
    number = check_number(argument, value)
    if not 0 < number <= 1:
        raise ValueError(f"{argument} must be above 0 and at most 1, got {number}")
    return number


def check_below_one(argument: str, value: object) -> float:
    """Return ``value`` if it is a number of at least 0, below 1."""
    number = check_number(argument, value)
    if not 0 <= number < 1:
        raise ValueError(f"{argument} must be at least 0 and below 1, got {number}")
    return number


def check_eps(value: object) -> float:
    """Return a quantisation precision ε: above 0, and so is ε², which formulas divide by."""
    eps = check_positive_number("eps", value)
    if not 0 < eps * eps < math.inf:
        raise ValueError(f"eps must have a square that is neither 0 nor infinite, got {eps}")
    return eps


def check_sizes(argument: str, value: object) -> tuple[int, ...]:
    """Return a token layout, such as ``(14, 14)``, as a tuple; an integer is a one-dimensional one."""
    if isinstance(value, (int, torch.SymInt)) or hasattr(value, "__index__"):
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


def check_mask(mask: Tensor | None, batch: int, num_tokens: int, device: torch.device) -> None:
    """Check that ``mask`` is a boolean (B, N) tensor, True for a real token and False for padding."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = a real token), got {kind}")
    if mask.shape != (batch, num_tokens):
        raise ValueError(f"mask must have shape (B, N) = {(batch, num_tokens)}, got {tuple(mask.shape)}")
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device}, but the tokens are on {device}")


def check_floating(argument: str, value: object) -> Tensor:
    """Return ``value`` if it is a real floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{argument} must be a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{argument} must be of a real floating-point dtype, got {value.dtype}")
    return value


def check_images(images: object, in_chans: int) -> None:
    """Check that ``images`` is a floating-point tensor (B, in_chans, height, width) with pixels."""
    shape = tuple(check_floating("images", images).shape)
    if len(shape) != 4 or shape[1] != in_chans or shape[2] < 1 or shape[3] < 1:
        raise ValueError(f"images must have shape (B, {in_chans}, height, width), got {shape}")


def check_covers_patch(images: Tensor, patch_size: int) -> None:
    """Check that images (B, C, height, width) are no smaller than a patch."""
    height, width = images.shape[2:]
    if min(height, width) < patch_size:
        raise ValueError(f"images of {height}×{width} px are smaller than a patch of {patch_size} px")
