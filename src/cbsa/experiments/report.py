"""What every experiment leaves behind: its numbers with their origin, and its pictures."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbsa._environment import environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, with the command line and the environment they come from."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    payload = {"command": command, "environment": environment(), **results}
    path.write_text(json.dumps(payload, indent=2) + "\n")


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG; return the paths."""
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths
