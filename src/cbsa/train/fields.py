"""Settings as text and as JSON: overriding fields by name, and reading untrusted configurations."""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Config = TypeVar("Config")


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts of what JSON can hold."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_dict(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Make a configuration from nested dicts, e.g. read from JSON; every name and type is checked."""
    return typing.cast(Config, _convert(values, kind, "", from_text=False))


def override(config: Config, assignments: Iterable[str]) -> Config:
    """Change fields of a configuration by text, e.g. ``["optimizer.lr=1e-3", "data.root=/data"]``.

    Fields of nested configurations are joined by dots. Tuples are lists separated by commas, ``none`` is
    None, and an entry of a dict field is one more name: ``model.kwargs.embed_dim=64``.
    """
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise ValueError(f"{assignment!r}: settings are given as name=value, e.g. optimizer.lr=1e-3")
        config = _replace(config, name.split("."), text, name)
    return config


def field_names(kind: Any, prefix: str = "") -> list[str]:
    """All field names of a configuration, those of nested ones with dots."""
    names = []
    for name, annotation in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(annotation):
            names += field_names(annotation, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def differences(a: Any, b: Any) -> list[str]:
    """Names of the fields in which two configurations of one kind differ."""
    names = []
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if dataclasses.is_dataclass(left):
            names += [f"{field.name}.{name}" for name in differences(left, right)]
        elif left != right:
            names.append(field.name)
    return names


def _replace(config: Any, path: Sequence[str], text: str, full: str) -> Any:
    head, *rest = path
    hints = typing.get_type_hints(type(config))
    if head not in hints:
        raise ValueError(_unknown(full, type(config), full.removesuffix(".".join(path))))
    annotation = hints[head]
    current = getattr(config, head)
    value: Any
    if dataclasses.is_dataclass(annotation):
        if not rest:
            inner = ", ".join(f"{full}.{name}" for name in typing.get_type_hints(annotation))
            raise ValueError(f"{full} is a group of settings; set one of {inner}")
        value = _replace(current, rest, text, full)
    elif rest and typing.get_origin(annotation) is dict:
        value = {**current, ".".join(rest): _loads(text)}
    elif rest:
        raise ValueError(f"{full}: {full.removesuffix('.' + '.'.join(rest))} has no fields")
    else:
        value = _convert(text, annotation, full, from_text=True)
    return dataclasses.replace(config, **{head: value})


def _convert(value: Any, annotation: Any, name: str, *, from_text: bool) -> Any:
    """Make ``value``, a text or what JSON gave, what ``annotation`` says, or raise."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if dataclasses.is_dataclass(annotation):
        return _from_mapping(value, typing.cast(type[Any], annotation), name)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not types.NoneType)
        if value is None or (from_text and value.lower() in ("none", "null", "")):
            return None
        return _convert(value, inner, name, from_text=from_text)
    if origin is tuple:
        items = [v.strip() for v in value.strip("()[] ").split(",")] if from_text else value
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"{name} must be a list, got {value!r}")
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise ValueError(f"{name} must have {len(arguments)} values, got {len(items)}: {value!r}")
        return tuple(_convert(v, arguments[0], name, from_text=from_text) for v in items)
    if origin is dict:
        value = _loads(value) if from_text else value
        if not isinstance(value, dict):
            raise TypeError(f'{name} must be a dict, e.g. {{"embed_dim": 64}}, got {value!r}')
        return dict(value)
    return _scalar(value, annotation, name, from_text)


def _scalar(value: Any, annotation: type, name: str, from_text: bool) -> Any:
    if from_text and annotation is bool:
        known = {"true": True, "1": True, "yes": True, "on": True}
        known |= {"false": False, "0": False, "no": False, "off": False}
        if value.lower() not in known:
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return known[value.lower()]
    if from_text and annotation in (int, float):
        try:
            return annotation(value)
        except ValueError:
            kind = "an integer" if annotation is int else "a number"
            raise ValueError(f"{name} must be {kind}, got {value!r}") from None
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, annotation) or (annotation is int and isinstance(value, bool)):
        raise TypeError(
            f"{name} must be of type {annotation.__name__}, got {value!r} of type {type(value).__name__}"
        )
    return value


def _from_mapping(value: Any, kind: type[Any], name: str) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name or 'the configuration'} must be a dict of settings, got {value!r}")
    hints = typing.get_type_hints(kind)
    prefix = f"{name}." if name else ""
    for key in value:
        if key not in hints:
            raise ValueError(_unknown(f"{prefix}{key}", kind, prefix))
    return kind(**{k: _convert(v, hints[k], f"{prefix}{k}", from_text=False) for k, v in value.items()})


def _unknown(full: str, kind: Any, prefix: str) -> str:
    names = field_names(kind, prefix)
    last = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(full, names, n=3, cutoff=0.6) or [
        last[name] for name in difflib.get_close_matches(full.rpartition(".")[2], last, n=3, cutoff=0.6)
    ]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(names)}"
    return f"unknown setting {full}{hint}"


def _loads(text: str) -> Any:
    """JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
