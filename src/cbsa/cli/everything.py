"""``cbsa reproduce all``: every experiment, one after another."""

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cbsa.cli.inside import run_inside
from cbsa.cli.laboratory import work_and_show
from cbsa.cli.reproduce import prepare
from cbsa.cli.running import friendly
from cbsa.cli.smoke import RUNS, Step, smoke_steps
from cbsa.cli.study import Data, Limit, Retry, Work, folders_of

SMOKE, POCKET, LABORATORY = "smoke", "pocket", "laboratory"
_RAN, _FAILED, _LEFT_OUT = "ran", "failed", "left out"


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    name: str
    status: str
    seconds: float
    files: int
    folder: str


def reproduce_all(
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: tiny models of embedded digits on the CPU, in minutes. pocket: small models of "
            "CIFAR-10, some hours on a CPU. laboratory: all studies, analyses and tables, hours on a GPU."
        ),
    ] = SMOKE,
    data: Data = None,
    limit: Limit = 0,
    retry: Retry = False,
    studies: Annotated[
        str, typer.Option(help="Folder of other manifests, or one of them; by default the package's.")
    ] = "all",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for everything [outputs/all-smoke, outputs/pocket, outputs/studies]."
        ),
    ] = None,
    work: Work = None,
) -> None:
    """Run every experiment end to end: to see that all still works (smoke), on a CPU (pocket), on a GPU.

    Numbers of smoke mean nothing, and what an earlier call left there is removed. At the other scales the
    same command goes on where it was stopped, as cbsa study does, and shows the tables of what there is;
    --data, --limit, --retry, --studies and --work are their options.
    """
    from cbsa._checks import check_choice

    with friendly():
        check_choice("--scale", scale, (SMOKE, POCKET, LABORATORY))
        if scale == SMOKE and (data or limit or retry or studies != "all"):
            raise ValueError("--data, --limit, --retry and --studies go with --scale pocket and laboratory")
    if scale == SMOKE:
        _smoke(out or Path("outputs/all-smoke"))
    else:
        name = POCKET if scale == POCKET and studies == "all" else studies
        work_and_show(name, *folders_of(name, out, work), data or (), limit, retry)


def _smoke(out: Path) -> None:
    """Run every experiment on tiny settings: does all of it still work?"""
    import torch

    from cbsa.bench.tables import Grid
    from cbsa.experiments.report import save_results
    from cbsa.experiments.scenes import write_scenes

    prepare(out)
    console = Console()
    log = out / "log.txt"
    steps = smoke_steps(out, write_scenes(out / "scenes"))
    if (out / "all.json").is_file():
        log.unlink(missing_ok=True)
        for folder in (*(step.out for step in steps), out / RUNS):
            shutil.rmtree(folder, ignore_errors=True)
    outcomes: list[Outcome] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bars, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(steps))
        for step in steps:
            progress.update(task, description=step.name)
            outcomes.append(_take(step, outcomes, log))
            progress.advance(task)
    torch.set_num_threads(threads)
    cells: list[tuple[str, ...]] = [
        (o.name, o.status, f"{o.seconds:.1f}", str(o.files), o.folder) for o in outcomes
    ]
    columns = ("experiment", "status", "seconds", "files", "where")
    console.print(Grid(f"All experiments, scale {SMOKE}", columns, cells).rich())
    save_results(out / "all.json", {"scale": SMOKE, "steps": [asdict(o) for o in outcomes]})
    failed = [o.name for o in outcomes if o.status != _RAN]
    console.print(f"What the commands said: {log}", soft_wrap=True)
    if failed:
        console.print(f"[red]Not run to the end: {', '.join(failed)}[/red]", soft_wrap=True)
        raise typer.Exit(1)


def _take(step: Step, before: list[Outcome], log: Path) -> Outcome:
    """Run a step, unless what it needs is not there."""
    if any(o.status != _RAN and Path(o.folder).name == step.needs for o in before):
        return Outcome(step.name, _LEFT_OUT, 0.0, 0, str(step.out))
    began = time.perf_counter()
    code = run_inside(step.words, log)
    seconds = time.perf_counter() - began
    files = sum(path.is_file() for path in step.out.rglob("*"))
    return Outcome(step.name, _FAILED if code or not files else _RAN, seconds, files, str(step.out))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("all")(reproduce_all)
