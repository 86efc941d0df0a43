"""What every experiment leaves behind: its numbers with their origin, and its pictures."""

import csv
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbsa._environment import environment
from cbsa._files import prepare_folder, write_text_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, with the command line and the environment they come from; NaN becomes null."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    payload = {"command": command, "environment": environment(), **_plain(results)}
    write_text_atomically(path, json.dumps(payload, indent=2, allow_nan=False) + "\n")


def save_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table as CSV; NaN is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if value is None else value for name, value in _plain(row).items()} for row in rows
    )
    write_text_atomically(path, text.getvalue())


def _plain(value: Any) -> Any:
    """Values that JSON knows: None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG; return the paths."""
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def save_analysis(
    out: Path,
    name: str,
    figures: "Mapping[str, Figure]",
    rows: Sequence[Mapping[str, Any]],
    results: dict[str, Any],
) -> list[Path]:
    """Write the pictures (PNG, SVG), the raw numbers (CSV) and the results with their origin (JSON).

    Args:
        out: folder.
        name: how all files begin.
        figures: pictures by what follows the name, "" for the first.
        rows: raw numbers.
        results: what else to say.

    Returns:
        Paths, the one to look at first.
    """
    prepare_folder(out)
    paths = [
        path for suffix, figure in figures.items() for path in save_figure(figure, out / (name + suffix))
    ]
    table, numbers = out / f"{name}.csv", out / f"{name}.json"
    save_rows(table, rows)
    save_results(numbers, results)
    return [*paths, table, numbers]


def file_name(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-").lower() or "model"
