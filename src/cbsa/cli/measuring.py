"""What the commands share that measure speed: options, progress, errors, and what is shown in the end."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cbsa.cli.options import Device, Options, choose_device, declare, options_of, split

if TYPE_CHECKING:
    from cbsa.bench.models import Config
    from cbsa.bench.results import Results

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for numbers, tables and pictures.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure everything anew, whatever --out holds.")]
Plots = Annotated[bool, typer.Option(help="Draw the results (needs matplotlib).")]
Seconds = Annotated[float, typer.Option(help="Time spent on each number, warm-up not counted.")]
Sizes = Annotated[str, typer.Option(help="Resolutions in pixels, separated by commas.")]
Modes = Annotated[str, typer.Option(help="inference, training, or both of them.")]
Batch = Annotated[str, typer.Option(help="Images at a time: large (by tokens), numbers, or both.")]
Precision = Annotated[str, typer.Option(help="bf16, fp16 or fp32.")]
Compiled = Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the blocks.")]
Jobs = Annotated[int, typer.Option(help="Compile in so many processes at once; 0 for none but this one.")]
DEFAULT_OUT = Path("outputs/bench")


def times(
    title: str, *, batch: str | None = "large,1"
) -> Callable[[Callable[..., Callable[..., "Config"]]], Callable[..., None]]:
    """Make a command that times models, or what is timed like them, of a function that chooses these.

    The function returns what makes settings of the options that are not its own. It has one named
    ``compiled``: before it come what is timed and the sizes, and last how long.

    Args:
        title: what is timed.
        batch: images at a time by default; None for no such option.
    """

    def make(function: Callable[..., Callable[..., "Config"]]) -> Callable[..., None]:
        own = options_of(function)
        what = dict(list(own.items())[: list(own).index("compiled")])
        sizes: Options = {"sizes": (Sizes, ""), "modes": (Modes, "")}
        sizes |= {} if batch is None else {"batch": (Batch, batch)}
        sizes |= {"precision": (Precision, "bf16")}
        last = {"seconds": (Seconds, 0.5), "jobs": (Jobs, 0), "fresh": (Fresh, False), "plots": (Plots, True)}
        options = {"out": (Out, DEFAULT_OUT), "device": (Device, "auto")} | what | sizes | own | last

        @functools.wraps(function)
        def command(**values: Any) -> None:
            from cbsa._files import prepare_folder
            from cbsa.bench.models import run

            chosen = {name: values.pop(name) for name in own}
            console, out = Console(), values["out"]
            with good_errors():
                config = function(**chosen)(**_settings(values))
                prepare_folder(out)
                count = len(list(config.forms()))
                results = with_progress(
                    run, config, title, count, out, values["fresh"], values["jobs"], console
                )
            show(console, results, out, values["plots"])

        declare(command, options)
        return command

    return make


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings from the options of every such command; the rest has defaults of its own."""
    from cbsa.bench.models import LARGE

    settings: dict[str, Any] = {"device": choose_device(values["device"])}
    if sizes := split(values["sizes"]):
        settings["img_sizes"] = tuple(_above_zero("--sizes", part) for part in sizes)
    if modes := split(values["modes"]):
        settings["modes"] = tuple(modes)
    if "batch" in values:
        settings["batches"] = tuple(
            LARGE if part == "large" else _above_zero("--batch", part) for part in split(values["batch"])
        )
    return settings | {"precision": values["precision"], "seconds": positive(values["seconds"])}


def _above_zero(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{option} {text!r}: expected a number above 0")
    return int(text)


def positive(seconds: float) -> float:
    """The time for a number, if it is one."""
    if not 0 < seconds < 3600:
        raise ValueError(f"--seconds must be above 0 and below 3600, got {seconds:g}")
    return seconds


@contextmanager
def good_errors() -> Iterator[None]:
    """Bad input is a bad parameter, and a GPU that fails ends the run with what was measured kept."""
    from cbsa.bench.timing import DeviceLostError

    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    except DeviceLostError as error:
        Console(stderr=True).print(f"{error}. Rows measured so far are kept: run the same command again.")
        raise typer.Exit(1) from error


def with_progress(
    run: Callable[..., "Results"],
    config: Any,
    title: str,
    total: int,
    out: Path,
    fresh: bool,
    jobs: int,
    console: Console,
) -> "Results":
    """Measure ``total`` rows with a progress bar; what it is at stands beside it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(text, highlight=False, soft_wrap=True)

        return run(config, out, fresh=fresh, jobs=jobs, say=say, advance=lambda: progress.advance(task))


def show(console: Console, results: "Results", out: Path, plots: bool, measured: bool = True) -> None:
    """Print the tables; write them, and the pictures where they can be drawn."""
    from cbsa.bench.tables import grids, save_csv, save_markdown

    for grid in grids(results):
        console.print(grid.rich())
    text, rows = (out / f"{results.kind}{suffix}" for suffix in (".md", ".csv"))
    save_markdown(results, text)
    save_csv(results, rows)
    written = [out / f"{results.kind}.json", text, rows] if measured else [text, rows]
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    if not plots:
        return
    try:
        from cbsa.bench.plots import save_plots
    except ImportError as error:
        console.print(
            f"No pictures: {error}. Draw them where matplotlib is: cbsa bench plot {out / results.kind}.json",
            soft_wrap=True,
        )
        return
    paths = save_plots(results, out)
    if paths:
        console.print(f"[bold]Look at {paths[0]}[/bold]", soft_wrap=True)
