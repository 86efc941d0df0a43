"""Options that many commands have: how their words are read, and how a command is made to have them."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

Device = Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU if there is one.")]
Options = dict[str, tuple[Any, Any]]
"""Annotations and defaults of options by their names, in the order of ``--help``."""


def choose_device(name: str) -> "torch.device":
    """The device that is meant, if it is there."""
    import torch

    from cbsa._checks import check_choice

    check_choice("--device", name, ("auto", "cpu", "cuda"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA device here; use --device cpu")
    return torch.device(name)


def split(text: str) -> list[str]:
    """Parts of a list written with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str, whole: bool = False) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [int(part) if whole else float(part) for part in split(text)]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise ValueError(f"{option} {text!r}: expected {kind} separated by commas") from None


def options_of(function: Callable[..., object], given: int = 0) -> Options:
    """The options that a function declares, behind what it is ``given`` first."""
    declared = list(signature(function).parameters.values())[given:]
    return {option.name: (option.annotation, option.default) for option in declared}


def declare(command: Callable[..., None], options: Options) -> None:
    """Let a command, which takes any keyword arguments, have these options."""
    kind = Parameter.KEYWORD_ONLY
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, kind, default=value, annotation=hint) for name, (hint, value) in options.items()]
    )
    command.__annotations__ = {name: hint for name, (hint, _) in options.items()}
