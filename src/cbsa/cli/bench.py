"""``cbsa bench``: how fast the operators and the models are on this machine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cbsa.cli.measuring import (
    DEFAULT_OUT,
    Compiled,
    Fresh,
    Jobs,
    Out,
    Plots,
    Seconds,
    good_errors,
    positive,
    show,
    times,
    with_progress,
)
from cbsa.cli.options import Device, choose_device, split

if TYPE_CHECKING:
    from cbsa.bench.models import Config

app = typer.Typer(help="Measure the speed of operators and models on this machine.", no_args_is_help=True)


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
    console = Console()
    with good_errors():
        from cbsa._files import prepare_folder
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
        prepare_folder(out)
        count = len(list(config.keys()))
        results = with_progress(operators.run, config, "Operators", count, out, fresh, jobs, console)
    show(console, results, out, plots)


@app.command("models")
@times("Models")
def models(
    names: Annotated[
        str, typer.Option("--models", help="Names or patterns (*_small_*), separated by commas.")
    ] = "*",
    compiled: Compiled = True,
    whole_model: Annotated[
        bool, typer.Option("--whole-model", help="Compile the model in one piece.")
    ] = False,
) -> Callable[..., "Config"]:
    """Time CBT beside ViT, CRATE and ToST of the same width, in inference and in training steps."""
    from cbsa.bench import models as bench

    compilation = ("model" if whole_model else "blocks") if compiled else "none"
    return partial(bench.Config, bench.choose_models(split(names)), compilation=compilation)


@app.command("decoders")
@times("Decoders")
def decoders(
    names: Annotated[
        str, typer.Option("--decoders", help="cbt, cbt-tied, depict, segmenter; all by default.")
    ] = "",
    widths: Annotated[
        str, typer.Option(help="Widths of the encoder: tiny, small, base, large, separated by commas.")
    ] = "small",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Compile the decoders.")] = True,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 150,
) -> Callable[..., "Config"]:
    """Time the decoders of segmenters alone: CBT and CBT† beside DEPICT and Segmenter's mask transformer."""
    from cbsa.bench import decoders as bench

    chosen = bench.names(tuple(split(names) or bench.DECODERS), tuple(split(widths)))
    compilation = "model" if compiled else "none"
    return partial(bench.Config, chosen, compilation=compilation, num_classes=classes)


@app.command("adapt")
@times("Adapted ViTs", batch="large")
def adapt(
    widths: Annotated[
        str, typer.Option("--models", help="Sizes of the ViT: tiny, small, base, large.")
    ] = "tiny,small,base,large",
    styles: Annotated[
        str, typer.Option(help="softmax (the ViT itself), cbsa, agent, linear, separated by commas.")
    ] = "softmax,cbsa,agent,linear",
    compiled: Compiled = True,
) -> Callable[..., "Config"]:
    """Time ViTs before and after their attention is swapped: images/s and memory, in one run."""
    from cbsa.bench import adapted as bench

    chosen = bench.names(split(widths), split(styles))
    return partial(bench.Config, chosen, compilation="blocks" if compiled else "none")


@app.command("scale")
@times("Scale", batch=None)
def scale(
    names: Annotated[
        str, typer.Option("--models", help="Names or patterns, separated by commas; CBT-S and ViT-S.")
    ] = "",
    compiled: Compiled = True,
    longest: Annotated[
        float, typer.Option(help="Seconds a call may take; what would take longer is not run.")
    ] = 20.0,
) -> Callable[..., "Config"]:
    """Time one image of 512 to 16,384 pixels, a million tokens, and fit how time grows with the tokens."""
    from cbsa.bench import models as bench
    from cbsa.bench import scale as large

    chosen = bench.choose_models(split(names)) or large.MODELS
    compilation = "blocks" if compiled else "none"
    return partial(large.Config, chosen, compilation=compilation, longest=longest)


@app.command("plot")
def plot(
    results: Annotated[Path, typer.Argument(help="ops.json, models.json, … of cbsa bench.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; by default the file's own.")
    ] = None,
) -> None:
    """Draw results that were measured before, perhaps on another machine, and write their tables."""
    from cbsa._files import prepare_folder
    from cbsa.bench.results import load_results

    with good_errors():
        loaded = load_results(results)
        folder = out or results.parent
        prepare_folder(folder)
    show(Console(), loaded, folder, True, measured=False)


def _list_candidates() -> None:
    from rich.table import Table

    from cbsa.bench.candidates import CANDIDATES

    table = Table("name", "what", "computes", "by default on")
    for name, candidate in CANDIDATES.items():
        table.add_row(name, candidate.label, candidate.problem.name, ", ".join(candidate.devices) or "—")
    Console().print(table)
