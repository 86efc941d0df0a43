"""What the commands of :mod:`cbsa.cli.analyses` share: models, images, progress, messages."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cbsa.cli.options import choose_device
from cbsa.cli.reproduce import prepare, say_where

if TYPE_CHECKING:
    from cbsa.bench.tables import Grid
    from cbsa.experiments.images import ImageChoice
    from cbsa.experiments.subjects import Start, Subject


@dataclass(frozen=True)
class Looking:
    """A command at work: its models, where it writes, and what it tells."""

    console: Console
    subjects: "list[Subject]"
    out: Path
    start: "Start"
    stop: Callable[[], object]  # end the progress bars

    def images(self, data: str | None, split: str, count: int) -> "ImageChoice":
        """The images to look at: those given, or of the data set the first model was trained on."""
        from cbsa.data import DATASETS

        return self._choose(data, DATASETS, split, count)

    def masks(self, data: str | None, split: str, count: int) -> "ImageChoice":
        """The images with masks: those given, or the digits for a model of them."""
        from cbsa.experiments import masks

        first = self.subjects[0].trained
        if data is None and not (first.has_data and first.data.dataset == "digits"):
            raise ValueError(
                "segmentation needs images with masks: give --data pets:FOLDER (Oxford-IIIT Pets with its "
                "trimaps) or --data voc:FOLDER (PASCAL VOC12), or --data digits for masks derived from ink"
            )
        return self._choose(data, masks.DATASETS, split, count)

    def _choose(self, data: str | None, known: Sequence[str], split: str, count: int) -> "ImageChoice":
        from cbsa.experiments.images import choose_images

        first = self.subjects[0].trained
        own = first.data if first.has_data else None
        return choose_images(data, known, own=own, split=split, count=count)

    def show(self, grids: "Sequence[Grid]", *notes: str) -> None:
        """Print tables and what to know about them."""
        self.stop()
        for grid in grids:
            self.console.print(narrow_table(grid))
        for note in filter(None, notes):
            self.console.print(note, highlight=False, markup=False)

    def written(self, paths: list[Path]) -> None:
        """Tell where the pictures and numbers are."""
        say_where(self.console, paths)


@contextmanager
def looking(
    name: str,
    out: Path | None,
    models: list[str] | None,
    weights: list[str] | None,
    untrained: bool,
    device: str,
    default: Sequence[str] = ("digits",),
) -> Iterator[Looking]:
    """Open the models of a command, training those of the digits first; the user's errors become messages."""
    from cbsa.data import TooManyCorruptImages
    from cbsa.experiments.subjects import open_subjects
    from cbsa.models import CheckpointError

    console, folder = Console(), out or Path("outputs") / name
    prepare(folder)
    names = models or list(default)
    try:
        for wanted in names:
            train_digits(wanted, console)
        subjects = open_subjects(names, weights or (), choose_device(device))
        for subject in subjects:
            if subject.trained.weights is None:
                console.print(
                    f"[yellow]{escape(subject.label)} has random weights: give --weights FILE.[/yellow]"
                )
        if untrained:
            subjects = [twin for subject in subjects for twin in (subject, subject.untrained())]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:

            def start(title: str, total: int) -> Callable[[], object]:
                task = progress.add_task(escape(title), total=total)
                return lambda: progress.advance(task)

            yield Looking(console, subjects, folder, start, progress.stop)
    except (ValueError, TypeError, FileNotFoundError, CheckpointError, TooManyCorruptImages) as error:
        raise typer.BadParameter(str(error)) from error


def train_digits(name: str, console: Console) -> None:
    """Train a model of the digits that is asked for, by ``[LABEL=]digits:NAME``, and not there yet."""
    from cbsa.cli.running import run_to_end
    from cbsa.experiments import digits
    from cbsa.train.trained import split_label

    _, name = split_label(name)
    if not digits.is_digits(name) or digits.is_trained(digits.member(name)):
        return
    member = digits.member(name)
    console.print(
        f"Training digits:{member} ({digits.MODELS[member][1]}) into {digits.folder(member)}, this once: "
        "a minute or two",
        highlight=False,
        soft_wrap=True,
    )
    run_to_end(digits.settings(member), digits.folder(member), console)


def narrow_table(grid: "Grid") -> Table:
    """A table whose headings break into lines where the terminal is narrow; the paper's numbers stand out."""
    table = Table(
        title=escape(grid.title),
        caption="\n".join(map(escape, grid.notes)) or None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for place, column in enumerate(grid.columns):
        style = "cyan" if column.startswith("paper: ") else None
        table.add_column(escape(column), justify="right" if place else "left", style=style, overflow="fold")
    for cells in grid.cells:
        marked = (re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/bold]", escape(cell)) for cell in cells)
        table.add_row(*marked, style="cyan" if cells[0].startswith("paper: ") else None)
    return table
