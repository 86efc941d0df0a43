"""Analyses as jobs: commands of ``cbsa reproduce`` on models that a study has trained."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbsa._checks import check_choice
from cbsa._files import prepare_folder
from cbsa.studies.data_sets import DATA_SETS, Root
from cbsa.studies.jobs import DATA, WORK, AnalysisJob
from cbsa.studies.records import keep

if TYPE_CHECKING:
    from cbsa.studies.place import Place

# What each command looks at besides its models: labelled images, images with masks, or nothing at all.
_IMAGES, _MASKS, _NOTHING = "images", "masks", ""
COMMANDS = {
    **dict.fromkeys(
        ("fig-coding-rate", "fig-reduced-cr", "fig-attn-map", "fig-rank", "fig-perturb"), _IMAGES
    ),
    **dict.fromkeys(("table-zero-shot", "table-zero-shot-layers"), _MASKS),
    **dict.fromkeys(("table-throughput", "table-complexity", "fig-complexity"), _NOTHING),
    **dict.fromkeys(("fig-3d", "table-seg-cost"), _NOTHING),
}
_WITH_MASKS = ("pets", "digits")  # data sets
_KEPT = (".json", ".csv", ".md")  # files that are small; pictures stay where the command wrote them
Runner = Callable[[Sequence[str], Path], None]  # runs ``cbsa WORDS…``, adds what it says to a file


def check_analysis(job: AnalysisJob) -> None:
    """Find mistakes in an analysis of a manifest."""
    analysis = job.analysis
    looks_at = COMMANDS[
        check_choice(f"command of the analysis {analysis.name!r}", analysis.command, COMMANDS)
    ]
    if bool(looks_at) != bool(analysis.models):
        wanted = "needs models = [STUDY/ENTRY, …]" if looks_at else "takes no models"
        raise ValueError(f"analysis {analysis.name!r}: {analysis.command} {wanted}")
    if looks_at and not job.data:
        raise ValueError(f"analysis {analysis.name!r}: say which images, data = NAME")
    if looks_at == _MASKS:
        check_choice(f"data with masks, of the analysis {analysis.name!r}", job.data, _WITH_MASKS)


def words_of(job: AnalysisJob, work: Path, root: Root | None, out: Path) -> list[str]:
    """The command of an analysis, but for ``cbsa``.

    Args:
        job: the analysis.
        work: folder of the runs.
        root: where its images lie; None for those that are embedded, or if there are none.
        out: folder for what it writes.
    """
    analysis = job.analysis
    words = ["reproduce", analysis.command]
    for run in job.needs:
        words += ["--model", f"{run.label or run.row}={work / run.name}"]
    if looks_at := COMMANDS[analysis.command]:
        name = job.data if root is None or looks_at == _MASKS else root.dataset
        words += ["--data", name if root is None else f"{name}:{root.folder}"]
    return [*words, *analysis.options, "--out", str(out)]


def command_of(job: AnalysisJob) -> str:
    """The command as a result keeps it: the folders of data set and runs are left open."""
    root = Root(DATA, job.data) if job.data and DATA_SETS[job.data].layouts else None
    return shlex.join(["cbsa", *words_of(job, Path(WORK), root, Path("FOLDER"))])


def analyse(job: AnalysisJob, place: "Place", run: Runner) -> dict[str, Any]:
    """Do an analysis in the folder of its run, pictures too, and keep its numbers beside its result.

    Args:
        job: the analysis.
        place: where the models and images are.
        run: what runs the command.

    Returns:
        The names of the files that are kept, and the time it took.
    """
    folder = place.run(job)
    prepare_folder(folder)
    began = time.perf_counter()
    run(words_of(job, place.work, place.data.named.get(job.data), folder), folder / "log.txt")
    seconds = time.perf_counter() - began
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _KEPT)
    if not names:
        raise RuntimeError(f"cbsa reproduce {job.label} has written nothing into {folder}")
    keep(folder, place.records.path(job).parent, names)
    return {"files": names, "seconds": seconds}
