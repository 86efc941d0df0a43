"""The command that repeats a run."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from cbsa.train.config import TrainConfig
from cbsa.train.fields import differences, from_dict, to_dict
from cbsa.train.recipes import recipe


def command_of(config: TrainConfig, *, root: str | None, out: str) -> str:
    """The ``cbsa train`` command of a run: its recipe, and every setting in which it differs from that.

    Args:
        config: settings of the run.
        root: folder of the data set to write there, in place of where it lay on the machine that trained.
        out: folder of the run to write there.
    """
    before = from_dict(TrainConfig, to_dict(recipe(config.recipe)))  # as the run's own are read, from JSON
    given = from_dict(TrainConfig, to_dict(config))
    words = [] if root is None else [f"data.root={root}"]
    for name in differences(before, given):
        if name != "data.root":
            words += _assignments(name, _at(before, name), _at(given, name))
    return shlex.join(["cbsa", "train", config.recipe, *words, "--out", out])


def _at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _assignments(name: str, before: Any, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name}={_text(value)}"
    elif before.keys() - value.keys():  # entries alone could not take one of the recipe's away
        yield f"{name}={json.dumps(value)}"
    else:
        for key, entry in value.items():
            if key not in before or before[key] != entry:
                yield f"{name}.{key}={entry if isinstance(entry, str) else json.dumps(entry)}"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
