"""``cbsa reproduce all --scale laboratory``: all studies and analyses as one queue, then their tables."""

import signal
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from cbsa.cli.running import friendly
from cbsa.cli.study import work_off
from cbsa.cli.study_tables import show_table

TABLES = "tables"  # folder of the tables, beside the results


def work_and_show(name: str, out: Path, work: Path, data: Sequence[str], limit: float, retry: bool) -> None:
    """Work through studies as ``cbsa study`` does, and show the tables of what there is so far.

    Args:
        name: which studies, see :func:`cbsa.studies.manifest.read_studies`.
        out: folder of the results; the tables go into a folder of it.
        work: folder of the runs.
        data: where the data sets lie, see :func:`cbsa.studies.data_sets.find_roots`.
        limit: seconds after which to stop; 0 for never.
        retry: try again what failed before.
    """
    from cbsa.studies.manifest import read_studies
    from cbsa.studies.place import Place
    from cbsa.studies.queue import choose_jobs

    console = Console()
    with friendly():
        studies = read_studies(name)
        jobs = choose_jobs(studies)
    done = work_off(jobs, Place(out, work), data, limit, retry, console)
    for study in studies:
        if study.table:
            show_table(study.table, out, str(study.path), out / TABLES / study.name)
    console.print(
        "The paper's claims by these results: copy them to benchmarks/results/studies of a checkout, then "
        "cbsa reproduce report",
        highlight=False,
        soft_wrap=True,
    )
    if not done:
        raise typer.Exit(128 + signal.SIGTERM)
