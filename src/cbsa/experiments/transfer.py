"""Paper table CBT_tab, its transfer part: pretrained models fine-tuned on other data sets."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbsa import paper
from cbsa.bench.tables import Grid
from cbsa.experiments.study_table import Line, lines_of, number, remarks, save_table, signed_spread, spread
from cbsa.studies.description import Entry, Study
from cbsa.studies.jobs import Job
from cbsa.studies.manifest import runs_of
from cbsa.studies.records import DONE, Records

NAME = "table-transfer"
TITLES = {"tiny-imagenet": "Tiny-ImageNet", "cifar10": "CIFAR-10", "pets": "Pets", "digits": "digits"}
_CAPTION = (
    "Top-1 on the test images, last epoch, mean ± standard deviation over seeds; «beside CBSA» is the "
    "difference to the CBSA of the same size, seed by seed. The paper pretrains on ImageNet-1k and "
    "fine-tunes at 224 px, in T and S its CBT models and ViT-S alone: compare the order of data sets and "
    "sizes, not the numbers."
)
# The paper's accuracies of our rows, by data set: ImageNet-1k, where ours has Tiny-ImageNet, CIFAR-10, Pets.
_PLACES = {"tiny-imagenet": 0, "cifar10": 1, "pets": 4}
PAPER: dict[str, dict[str, float]] = {
    label: {data: paper.CLASSIFICATION[name][place] for data, place in _PLACES.items()}
    for label, name in {"CBSA-T": "CBT-T", "CBSA-S": "CBT-S", "ViT-S": "ViT-S"}.items()
}


@dataclass(frozen=True)
class Transferred:
    """A pretrained model: its accuracy where it was trained, and the rows of where it was fine-tuned."""

    label: str
    data: str  # that it was pretrained on
    pretrained: dict[int, float]  # top-1 in percent, by seed
    lines: dict[str, Line]  # by data set


def caption(study: Study) -> str:
    """How to read the table."""
    return _CAPTION


def rows_of(study: Study, lines: Sequence[Line], records: Records) -> list[Transferred]:
    """A row for each model, from the lines of its fine-tunings."""
    found: dict[str, Transferred] = {}
    for entry, line in zip(study.entries, lines, strict=True):
        runs = _starts(study, entry)
        done = {run.seed: record for run in runs if (record := records.find(run)) is not None}
        tops = {seed: record.result["top1"] for seed, record in done.items() if record.status == DONE}
        row = found.setdefault(line.label, Transferred(line.label, runs[0].data, tops, {}))
        row.lines[entry.data or study.data] = line
    return list(found.values())


def _starts(study: Study, entry: Entry) -> list[Job]:
    """All runs of the entry whose weights an entry starts from."""
    start = runs_of(study, entry)[0].start
    if start is None:
        raise ValueError(f"study {study.name}: entry {entry.name!r} starts from no other: it is no transfer")
    return runs_of(start.study, start.entry)


def grids(study: Study, lines: Sequence[Line], rows: Sequence[Transferred]) -> list[Grid]:
    """Accuracies, ours and the paper's, by data set."""
    sets = list(dict.fromkeys(name for row in rows for name in row.lines))
    before = list(dict.fromkeys(row.data for row in rows))
    columns: tuple[str, ...] = ("model", *(f"{TITLES.get(name, name)}: pretrained" for name in before))
    for name in sets:
        columns += (f"{TITLES[name]} %", "beside CBSA", "rate")
    columns += ("paper: ImageNet-1k %", *(f"paper: {TITLES[name]} %" for name in sets if name in _PLACES))
    cells: list[tuple[str, ...]] = []
    for row in rows:
        line_cells = [
            row.label,
            *(spread(list(row.pretrained.values())) if n == row.data else "" for n in before),
        ]
        for name in sets:
            line = row.lines.get(name)
            line_cells += ["", "", ""] if line is None else _cells(line)
        theirs = PAPER.get(row.label, {})
        shown = ("tiny-imagenet", *(name for name in sets if name in _PLACES))
        cells.append((*line_cells, *(number(theirs.get(name), ".1f") for name in shown)))
    notes = (*verdicts(rows), *remarks(lines, study))
    return [Grid(f"Table CBT_tab: {study.title}", columns, cells, notes)]


def _cells(line: Line) -> list[str]:
    return [
        spread(list(line.top1.values())),
        signed_spread(list(line.difference.values())),
        number(line.learning_rate, "g"),
    ]


def verdicts(rows: Sequence[Transferred]) -> tuple[str, ...]:
    """For each data set with results of CBSA-T and S: what the larger model gains, ours and the paper's."""
    found = []
    means = {
        (row.label, name): statistics.mean(line.top1.values())
        for row in rows
        for name, line in row.lines.items()
        if line.top1
    }
    for name in (n for n in _PLACES if any(n in row.lines for row in rows)):
        ours = [means.get((f"CBSA-{size}", name)) for size in "TS"]
        theirs = [PAPER[f"CBSA-{size}"][name] for size in "TS"]
        if ours[0] is not None and ours[1] is not None:
            gain, paper_gain = ours[1] - ours[0], theirs[1] - theirs[0]
            told = f"CBSA-S is {gain:+.2f} points beside CBSA-T, the paper's {paper_gain:+.1f}"
            found.append(f"{TITLES[name]}: {told}")
    return tuple(found)


def run(study: Study, results: Path) -> tuple[list[Line], list[Grid]]:
    """The table of the results there are."""
    records = Records(results)
    lines = lines_of(study, records)
    return lines, grids(study, lines, rows_of(study, lines, records))


def save(study: Study, lines: Sequence[Line], tables: Sequence[Grid], out: Path) -> list[Path]:
    """Write table and numbers, the paper's among them."""
    return save_table(study, lines, tables, out, NAME, paper={"top1": PAPER})
