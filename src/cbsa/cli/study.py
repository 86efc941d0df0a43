"""``cbsa study``: many runs as one queue of resumable jobs."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cbsa.cli.looking import narrow_table
from cbsa.cli.running import Settings, friendly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cbsa.bench.tables import Grid
    from cbsa.studies.jobs import AnalysisJob, Job
    from cbsa.studies.place import Place

OUT = Path("outputs/studies")
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FOLDER for each data set (tiny-imagenet, cifar10, pets), or one FOLDER: of the data set, "
        "or with sub-folders of these names."
    ),
]
Limit = Annotated[
    float, typer.Option(min=0, help="Stop after so many seconds, with the state saved; 0 for never.")
]
Retry = Annotated[bool, typer.Option("--retry", help="Try again what failed before.")]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the runs, with checkpoints and weights [outputs/studies-work; outputs/pocket-work]."
    ),
]


def study(
    name: Annotated[
        str | None,
        typer.Argument(
            help="fair, transfer, analyses, gap, ablations, laptop; all; pocket: small ones for a CPU; a "
            "manifest of yours (FILE.toml), or a folder of them."
        ),
    ] = None,
    settings: Settings = None,
    data: Data = None,
    limit: Limit = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Jobs by pattern, e.g. 'cbsa-*', 'mssa-t/rate*' or '*/seed0'; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="So many seeds of each entry; 0 for all.")] = 0,
    retry: Retry = False,
    show: Annotated[bool, typer.Option("--list", help="List the jobs and how far they are.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the results: small JSON and CSV [outputs/studies; outputs/pocket].",
        ),
    ] = None,
    work: Work = None,
) -> None:
    """Work through a study: the same command goes on where it was stopped, in mid-training too.

    Results that are in --out are not done again. Ends with 0 when all is done, with 143 when jobs are left.
    """
    from cbsa.studies.manifest import read_studies
    from cbsa.studies.place import Place
    from cbsa.studies.queue import choose_jobs

    console = Console()
    with friendly():
        if name is None:
            console.print(_studies())
            return
        place = Place(*folders_of(name, out, work), tuple(settings or ()))
        studies = read_studies(name)
        jobs = choose_jobs(studies, only or (), seeds)
        if show:
            console.print(narrow_table(status_grid(jobs, place, "; ".join(s.title for s in studies))))
            return
    if not work_off(jobs, place, data or (), limit, retry, console):
        raise typer.Exit(128 + signal.SIGTERM)


def folders_of(name: str, out: Path | None, work: Path | None) -> tuple[Path, Path]:
    """Folders of results and runs: those given, or a pair of the study's scale, so that scales do not mix."""
    from cbsa.studies.manifest import scale_names

    scale = name.partition("/")[0]
    default = OUT.parent / scale if scale in scale_names() else OUT
    return out or default, work or default.with_name(f"{default.name}-work")


def work_off(
    jobs: "list[Job | AnalysisJob]",
    place: "Place",
    data: "Sequence[str]",
    limit: float,
    retry: bool,
    console: Console,
) -> bool:
    """Find the data sets that are needed, and do the jobs; returns whether none is left."""
    from cbsa.cli.inside import call_inside
    from cbsa.studies.data_sets import find_roots
    from cbsa.studies.queue import data_needed, work_through
    from cbsa.train.run_folder import FolderInUseError

    with friendly():
        set_by_hand = any(setting.startswith("data.root=") for setting in place.settings)
        needed = [] if set_by_hand else data_needed(jobs, place, retry)
        place = replace(place, data=find_roots(data, needed))
        try:
            done = work_through(jobs, place, seconds=limit, retry=retry, console=console, runner=call_inside)
        except (FileNotFoundError, FolderInUseError):
            raise
        except (RuntimeError, OSError) as error:
            console.print(f"[red]Stopped:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(1) from error
    console.print(_sum_up(jobs, place), highlight=False, soft_wrap=True)
    return done


def _studies() -> Table:
    """The studies there are."""
    from cbsa.studies.manifest import jobs_of, read_study, study_names

    table = Table("study", "jobs", "what", title="Studies: cbsa study NAME --list says more")
    for name in study_names():
        found = read_study(name)
        table.add_row(name, str(len(jobs_of(found))), found.title)
    return table


def status_grid(jobs: "list[Job | AnalysisJob]", place: "Place", title: str) -> "Grid":
    """A row for each job: learning rate, status, accuracy or why it failed, and how long it takes."""
    from cbsa.bench.tables import Grid
    from cbsa.studies.jobs import Job
    from cbsa.studies.overview import expected_seconds, seconds_taken
    from cbsa.studies.tuning import rate_of

    expected = expected_seconds(jobs, place)
    cells: list[tuple[str, ...]] = []
    for job in jobs:
        record = place.records.find(job)
        rate = rate_of(job, place.records).value if isinstance(job, Job) else None
        told = "" if record is None else record.reason
        if record is not None and "top1" in record.result:
            told = f"{record.result['top1']:.2f} %"
        taken = seconds_taken(record)
        minutes = "" if taken is None else f"{taken / 60:.1f}"
        if job.name in expected:
            minutes = f"≈ {expected[job.name] / 60:.1f}"
        cells.append((job.name, "" if rate is None else f"{rate:g}", place.status(job), told, minutes))
    left = [job for job in jobs if place.is_open(job)]
    notes = [f"{len(left)} jobs are left"] if left else []
    if expected:
        unknown = len(left) - len(expected)
        notes[0] += (
            f": about {sum(expected.values()) / 60:.0f} minutes for {len(expected)} of them, by the speeds "
            f"recorded so far" + (f"; nothing is known of {unknown}" if unknown else "")
        )
    return Grid(title, ("job", "rate", "status", "top-1", "minutes"), cells, tuple(notes))


def _sum_up(jobs: "list[Job | AnalysisJob]", place: "Place") -> str:
    """How many jobs are how far, and where the results are."""
    from cbsa.studies.place import STATUSES

    found = [place.status(job) for job in jobs]
    counts = ", ".join(f"{found.count(status)} {status}" for status in STATUSES if status in found)
    return f"{counts or 'no job'}. Results: {escape(str(place.out))}"
