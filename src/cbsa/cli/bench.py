"""``cbsa bench``: how fast the operators and the models are on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    import torch

    from cbsa.bench.models import Config as ModelsConfig
    from cbsa.bench.results import Results

app = typer.Typer(help="Measure the speed of operators and models on this machine.", no_args_is_help=True)

Device = Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU if there is one.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for numbers, tables and pictures.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure everything anew, whatever --out holds.")]
Plots = Annotated[bool, typer.Option(help="Draw the results (needs matplotlib).")]
Seconds = Annotated[float, typer.Option(help="Time spent on each number, warm-up not counted.")]
ImageSizes = Annotated[str, typer.Option("--sizes", help="Resolutions in pixels, separated by commas.")]
ModelModes = Annotated[str, typer.Option("--modes", help="inference, training, or both of them.")]
Batch = Annotated[str, typer.Option(help="Images at a time: large (by tokens), numbers, or both.")]
Precision = Annotated[str, typer.Option(help="bf16, fp16 or fp32.")]
Jobs = Annotated[int, typer.Option(help="Compile in so many processes at once; 0 for none but this one.")]
DEFAULT_OUT = Path("outputs/bench")


@app.command("ops")
def ops(
    out: Out = DEFAULT_OUT,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32; by default the device's.")] = "",
    sizes: Annotated[str, typer.Option(help="TOKENSxBATCH, separated by commas.")] = "",
    heads: Annotated[int, typer.Option(help="Number of heads H.")] = 6,
    head_dim: Annotated[int, typer.Option(help="Channels d of a head.")] = 64,
    representatives: Annotated[int, typer.Option(help="Number m of representatives.")] = 64,
    candidates: Annotated[
        str, typer.Option(help="What to time, separated by commas; 'list' shows all.")
    ] = "",
    modes: Annotated[str, typer.Option(help="forward, forward+backward, or both of them.")] = "",
    seconds: Seconds = 0.2,
    jobs: Jobs = 0,
    fresh: Fresh = False,
    plots: Plots = True,
) -> None:
    """Time CBSA beside softmax (cuDNN, flash, flex) and linear attention, TSSA and the paper's listing."""
    if candidates == "list":
        _list_candidates()
        return
    with good_errors():
        from cbsa.bench import geometry, operators
        from cbsa.bench.candidates import default_candidates

        place = choose_device(device)
        pairs = [geometry.parse_size(s) for s in split(sizes)] or geometry.SIZES[place.type]
        config = operators.Config(
            tuple(geometry.Geometry(n, b, heads, head_dim, representatives) for n, b in pairs),
            tuple(split(candidates) or default_candidates(place.type)),
            place,
            dtype or ("bfloat16" if place.type == "cuda" else "float32"),
            tuple(split(modes) or geometry.MODES),
            positive(seconds),
        )
        _prepare(out)
        console = Console()
        with show_progress(console) as start:
            say, advance = start("Operators", len(list(config.keys())))
            results = operators.run(config, out, fresh=fresh, jobs=jobs, say=say, advance=advance)
    _show(console, results, out, plots)


@app.command("models")
def models(
    out: Out = DEFAULT_OUT,
    device: Device = "auto",
    names: Annotated[
        str, typer.Option("--models", help="Names or patterns (*_small_*), separated by commas.")
    ] = "*",
    sizes: ImageSizes = "",
    modes: ModelModes = "",
    batch: Batch = "large,1",
    precision: Precision = "bf16",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the blocks.")] = True,
    whole_model: Annotated[
        bool, typer.Option("--whole-model", help="Compile the model in one piece.")
    ] = False,
    seconds: Seconds = 0.5,
    jobs: Jobs = 0,
    fresh: Fresh = False,
    plots: Plots = True,
) -> None:
    """Time CBT beside ViT, CRATE and ToST of the same width, in inference and in training steps."""
    with good_errors():
        from cbsa.bench import models as bench
        from cbsa.bench.model_forms import MODES

        config = bench.Config(
            bench.choose_models(split(names)),
            choose_device(device),
            _integers("--sizes", sizes) or bench.RESOLUTIONS,
            tuple(split(modes) or MODES),
            _batches(batch),
            precision,
            ("model" if whole_model else "blocks") if compiled else "none",
            positive(seconds),
        )
    _measure_forms(config, "Models", out, jobs, fresh, plots)


@app.command("decoders")
def decoders(
    out: Out = DEFAULT_OUT,
    device: Device = "auto",
    names: Annotated[
        str, typer.Option("--decoders", help="cbt, cbt-tied, depict, segmenter; all by default.")
    ] = "",
    widths: Annotated[
        str, typer.Option(help="Widths of the encoder: tiny, small, base, large, separated by commas.")
    ] = "small",
    sizes: ImageSizes = "",
    modes: ModelModes = "",
    batch: Batch = "large,1",
    precision: Precision = "bf16",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the decoders.")] = True,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 150,
    seconds: Seconds = 0.5,
    jobs: Jobs = 0,
    fresh: Fresh = False,
    plots: Plots = True,
) -> None:
    """Time the decoders of segmenters alone: CBT and CBT† beside DEPICT and Segmenter's mask transformer."""
    with good_errors():
        from cbsa.bench import decoders as bench
        from cbsa.bench.model_forms import MODES

        config = bench.Config(
            bench.names(tuple(split(names) or bench.DECODERS), tuple(split(widths))),
            choose_device(device),
            _integers("--sizes", sizes) or bench.RESOLUTIONS,
            tuple(split(modes) or MODES),
            _batches(batch),
            precision,
            "model" if compiled else "none",
            positive(seconds),
            classes,
        )
    _measure_forms(config, "Decoders", out, jobs, fresh, plots)


@app.command("adapt")
def adapt(
    out: Out = DEFAULT_OUT,
    device: Device = "auto",
    widths: Annotated[
        str, typer.Option("--models", help="Sizes of the ViT: tiny, small, base, large.")
    ] = "tiny,small,base,large",
    styles: Annotated[
        str, typer.Option(help="softmax (the ViT itself), cbsa, agent, linear, separated by commas.")
    ] = "softmax,cbsa,agent,linear",
    sizes: ImageSizes = "",
    modes: ModelModes = "",
    batch: Batch = "large",
    precision: Precision = "bf16",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the blocks.")] = True,
    seconds: Seconds = 0.5,
    jobs: Jobs = 0,
    fresh: Fresh = False,
    plots: Plots = True,
) -> None:
    """Time ViTs before and after their attention is swapped: images/s and memory, in one run."""
    with good_errors():
        from cbsa.bench import adapted as bench
        from cbsa.bench.model_forms import MODES

        config = bench.Config(
            bench.names(split(widths), split(styles)),
            choose_device(device),
            _integers("--sizes", sizes) or bench.RESOLUTIONS,
            tuple(split(modes) or MODES),
            _batches(batch),
            precision,
            "blocks" if compiled else "none",
            positive(seconds),
        )
    _measure_forms(config, "Adapted ViTs", out, jobs, fresh, plots)


@app.command("scale")
def scale(
    out: Out = DEFAULT_OUT,
    device: Device = "auto",
    names: Annotated[
        str, typer.Option("--models", help="Names or patterns, separated by commas; CBT-S and ViT-S.")
    ] = "",
    sizes: ImageSizes = "",
    modes: ModelModes = "",
    precision: Precision = "bf16",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the blocks.")] = True,
    longest: Annotated[
        float, typer.Option(help="Seconds a call may take; what would take longer is not run.")
    ] = 20.0,
    seconds: Seconds = 0.5,
    jobs: Jobs = 0,
    fresh: Fresh = False,
    plots: Plots = True,
) -> None:
    """Time one image of 512 to 16,384 pixels, a million tokens, and fit how time grows with the tokens."""
    with good_errors():
        from cbsa.bench import models as bench
        from cbsa.bench import scale as large
        from cbsa.bench.model_forms import MODES

        config = large.Config(
            bench.choose_models(split(names)) or large.MODELS,
            choose_device(device),
            _integers("--sizes", sizes) or large.RESOLUTIONS,
            tuple(split(modes) or MODES),
            precision=precision,
            compilation="blocks" if compiled else "none",
            seconds=positive(seconds),
            longest=longest,
        )
    _measure_forms(config, "Scale", out, jobs, fresh, plots)


@app.command("plot")
def plot(
    results: Annotated[Path, typer.Argument(help="ops.json, models.json, … of cbsa bench.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; by default the file's own.")
    ] = None,
) -> None:
    """Draw results that were measured before, perhaps on another machine, and write their tables."""
    from cbsa.bench.results import load_results

    with good_errors():
        loaded = load_results(results)
        folder = out or results.parent
        _prepare(folder)
    _show(Console(), loaded, folder, True, measured=False)


Start = Callable[[str, int], tuple[Callable[[str], object], Callable[[], object]]]


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


def _integer(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{option} {text!r}: expected a number above 0")
    return int(text)


def _integers(option: str, text: str) -> tuple[int, ...]:
    return tuple(_integer(option, part) for part in split(text))


def _batches(text: str) -> tuple[int, ...]:
    from cbsa.bench.models import LARGE

    return tuple(LARGE if part == "large" else _integer("--batch", part) for part in split(text))


def positive(seconds: float) -> float:
    """The time for a number, if it is one."""
    if not 0 < seconds < 3600:
        raise ValueError(f"--seconds must be above 0 and below 3600, got {seconds:g}")
    return seconds


def _prepare(out: Path) -> None:
    from cbsa._files import prepare_folder

    prepare_folder(out)


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


@contextmanager
def show_progress(console: Console) -> Iterator[Start]:
    """A bar for each part of a run; what it is at stands beside it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def start(title: str, total: int) -> tuple[Callable[[str], object], Callable[[], object]]:
            task = progress.add_task(title, total=total)

            def say(text: str) -> None:
                progress.update(task, description=text)
                if not console.is_terminal:
                    console.print(text, highlight=False, soft_wrap=True)

            return say, lambda: progress.advance(task)

        yield start


def _list_candidates() -> None:
    from rich.table import Table

    from cbsa.bench.candidates import CANDIDATES

    table = Table("name", "what", "computes", "by default on")
    for name, candidate in CANDIDATES.items():
        table.add_row(name, candidate.label, candidate.problem.name, ", ".join(candidate.devices) or "—")
    Console().print(table)


def _measure_forms(
    config: "ModelsConfig", title: str, out: Path, jobs: int, fresh: bool, plots: bool
) -> None:
    """Time models, or what is timed like them, and show the results."""
    from cbsa.bench.models import run

    console = Console()
    with good_errors():
        _prepare(out)
        with show_progress(console) as start:
            say, advance = start(title, len(list(config.forms())))
            results = run(config, out, fresh=fresh, jobs=jobs, say=say, advance=advance)
    _show(console, results, out, plots)


def _show(console: Console, results: "Results", out: Path, plots: bool, measured: bool = True) -> None:
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
