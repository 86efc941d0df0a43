"""``cbsa study``: many runs as one queue of resumable jobs."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cbsa.cli.looking import narrow_table
from cbsa.cli.train import Settings, friendly

if TYPE_CHECKING:
    from cbsa.bench.tables import Grid
    from cbsa.studies.manifest import Job
    from cbsa.studies.queue import Place

OUT, WORK = Path("outputs/studies"), Path("outputs/studies-work")


def study(
    name: Annotated[
        str | None, typer.Argument(help="fair, gap, ablations, all, or a manifest of yours (FILE.toml).")
    ] = None,
    settings: Settings = None,
    data: Annotated[str | None, typer.Option(help="Folder of the data set (data.root).")] = None,
    limit: Annotated[
        float, typer.Option(min=0, help="Stop after so many seconds, with the state saved; 0 for never.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Jobs by pattern, e.g. 'cbsa-*', 'mssa-t/rate*' or '*/seed0'; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="So many seeds of each entry; 0 for all.")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the jobs and how far they are.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the results: small JSON and CSV.")
    ] = OUT,
    work: Annotated[Path, typer.Option(help="Folder of the runs, with checkpoints and weights.")] = WORK,
) -> None:
    """Work through a study: the same command goes on where it was stopped, in mid-training too.

    Results that are in --out are not done again. Ends with 0 when all is done, with 143 when jobs are left.
    """
    from cbsa.studies.manifest import read_study, study_names
    from cbsa.studies.queue import Place, choose_jobs, work_through
    from cbsa.train.run_folder import FolderInUseError

    console = Console()
    with friendly():
        if name is None:
            console.print(_studies())
            return
        root = [f"data.root={data}"] if data is not None else []
        place = Place(out, work, (*root, *(settings or [])))
        studies = [read_study(one) for one in (study_names() if name == "all" else [name])]
        jobs = choose_jobs(studies, only or (), seeds)
        if show:
            console.print(narrow_table(status_grid(jobs, place, "; ".join(s.title for s in studies))))
            return
        try:
            done = work_through(jobs, place, seconds=limit, retry=retry, console=console)
        except (FileNotFoundError, FolderInUseError):
            raise
        except (RuntimeError, OSError) as error:
            console.print(f"[red]Stopped:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(1) from error
    console.print(_sum_up(jobs, place), highlight=False, soft_wrap=True)
    if not done:
        raise typer.Exit(128 + signal.SIGTERM)


def _studies() -> Table:
    """The studies there are."""
    from cbsa.studies.manifest import jobs_of, read_study, study_names

    table = Table("study", "jobs", "what", title="Studies: cbsa study NAME --list says more")
    for name in study_names():
        found = read_study(name)
        table.add_row(name, str(len(jobs_of(found))), found.title)
    return table


def status_grid(jobs: "list[Job]", place: "Place", title: str) -> "Grid":
    """A row for each job: learning rate, status, accuracy or why it failed."""
    from cbsa.bench.tables import Grid
    from cbsa.studies.tuning import rate_of

    cells: list[tuple[str, ...]] = []
    for job in jobs:
        record, rate = place.records.find(job), rate_of(job, place.records).value
        told = "" if record is None else record.reason
        if record is not None and "top1" in record.result:
            told = f"{record.result['top1']:.2f} %"
        cells.append((job.name, "" if rate is None else f"{rate:g}", place.status(job), told))
    return Grid(title, ("job", "rate", "status", "top-1"), cells)


def _sum_up(jobs: "list[Job]", place: "Place") -> str:
    """How many jobs are how far, and where the results are."""
    from cbsa.studies.queue import STATUSES

    found = [place.status(job) for job in jobs]
    counts = ", ".join(f"{found.count(status)} {status}" for status in STATUSES if status in found)
    return f"{counts or 'no job'}. Results: {escape(str(place.out))}"
