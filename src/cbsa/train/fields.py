"""Settings as text and as JSON: overriding fields by name, and reading untrusted configurations."""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Config = TypeVar("Config")
_ALIKE = 0.6  # likeness, from 0 to 1, of names of which one may be a misspelling of the other
_AS_GOOD = 0.15  # by which a suggestion may be less alike than the best one


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
    None, and an entry of a dict field is one more name, or several: ``model.kwargs.embed_dim=64``. Its value
    is JSON, or else a text.
    """
    changes: dict[str, Any] = {}
    names = field_names(type(config))
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise ValueError(f"{assignment!r}: settings are given as name=value, e.g. optimizer.lr=1e-3")
        try:
            _note_change(changes, config, name.split("."), text, name)
        except KeyError:
            raise ValueError(_unknown(name, names)) from None
    return typing.cast(Config, _apply(config, changes))


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


def _note_change(changes: dict[str, Any], config: Any, path: Sequence[str], text: str, full: str) -> None:
    """Put one assignment into a tree of new values, nested as the configuration is."""
    head, *rest = path
    annotation = typing.get_type_hints(type(config))[head]
    if dataclasses.is_dataclass(annotation):
        if not rest:
            inner = ", ".join(f"{full}.{name}" for name in typing.get_type_hints(annotation))
            raise ValueError(f"{full} is a group of settings; set one of {inner}")
        _note_change(changes.setdefault(head, {}), getattr(config, head), rest, text, full)
    elif rest and typing.get_origin(annotation) is dict:
        if "" in rest:
            raise ValueError(f"{full}: a name is empty")
        changes[head] = _with_entry(changes.get(head, getattr(config, head)), rest, _loads(text))
    elif rest:
        raise ValueError(f"{full}: {full.removesuffix('.' + '.'.join(rest))} has no fields")
    else:
        changes[head] = _convert(text, annotation, full, from_text=True)


def _with_entry(entries: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of a dict, or a new one, with one entry, which may be of a dict in it, changed."""
    known: dict[str, Any] = entries if isinstance(entries, dict) else {}
    head, *rest = path
    return {**known, head: _with_entry(known.get(head), rest, value) if rest else value}


def _apply(config: Any, changes: Mapping[str, Any]) -> Any:
    """Make all changes at once: settings are checked together, in whatever order they were given."""
    values = {
        name: _apply(getattr(config, name), value)
        if dataclasses.is_dataclass(getattr(config, name))
        else value
        for name, value in changes.items()
    }
    return dataclasses.replace(config, **values)


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
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} must be finite, got an integer of {value.bit_length()} bits") from None
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
            raise ValueError(_unknown(f"{prefix}{key}", field_names(kind, prefix)))
    return kind(**{k: _convert(v, hints[k], f"{prefix}{k}", from_text=False) for k, v in value.items()})


def _unknown(full: str, names: Sequence[str]) -> str:
    near = _nearest(full, names)
    group = [name for name in names if name.startswith(full.partition(".")[0] + ".")]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(group or names)}"
    return f"unknown setting {full}{hint}"


def _nearest(full: str, names: Sequence[str]) -> list[str]:
    """The names most like an unknown one: last parts must be alike, the groups decide between them."""
    group, _, last = full.rpartition(".")

    def likeness(a: str, b: str) -> float:
        return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()

    scores = {}
    for name in names:
        its_group, _, its_last = name.rpartition(".")
        if (alike := likeness(last, its_last)) >= _ALIKE:
            scores[name] = alike + (likeness(group, its_group) if group else 0.0)
    best = max(scores.values(), default=0.0)
    near = [name for name, score in scores.items() if score > best - _AS_GOOD]
    return sorted(near, key=lambda name: -scores[name])[:3]


def _loads(text: str) -> Any:
    """JSON if it is JSON, Python's spelling of its constants too, else the text itself."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
