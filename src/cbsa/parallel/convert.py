"""The same module as another class."""

from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def as_class(module: nn.Module, kind: type[Module]) -> Module:
    """A module of another class with the same attributes: it shares parameters, buffers and submodules.

    Attributes set on one of them later, submodules included, do not show in the other; nor is it compiled if
    the other is, whose code would run in its place.
    """
    new = kind.__new__(kind)
    vars(new).update(vars(module))
    for names in ("_parameters", "_buffers", "_modules"):
        vars(new)[names] = vars(module)[names].copy()
    vars(new)["_compiled_call_impl"] = None
    return new
