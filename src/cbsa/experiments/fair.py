"""Paper table fair_comp: the same model with different attentions, at laboratory scale."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from cbsa import paper
from cbsa.bench.tables import Grid
from cbsa.experiments.study_table import (
    Line,
    lines_of,
    number,
    remarks,
    save_table,
    signed_spread,
    spread,
)
from cbsa.studies.manifest import Study
from cbsa.studies.records import Records

NAME = "table-fair"
_CAPTION = (
    "Top-1 and top-5 on the validation images, last epoch, mean ± standard deviation over seeds; «beside "
    "CBSA» is the difference in top-1, seed by seed. FLOPs: twice the multiply-accumulates, by the paper's "
    "rule. «run»: of the training runs, with augmentation, optimiser and the images in memory; forward and "
    "backward, and inference: the model alone. The paper's numbers are of ImageNet-1k at 224 px, 150 epochs: "
    "compare the order, not the numbers."
)


def caption(study: Study) -> str:
    """How to read the tables."""
    return _CAPTION


def grids(study: Study, lines: Sequence[Line]) -> list[Grid]:
    """Accuracies and costs, ours and the paper's where its table has the row."""
    columns = ("model", "top-1 %", "seeds", "beside CBSA", "top-5 %", "rate", "paper: top-1 %")
    costs: tuple[str, ...] = ("model", "similarities", "GFLOPs", "parameters", "run images/s", "run GiB")
    costs += ("forward and backward", "inference", "paper: similarities")
    cells: list[tuple[str, ...]] = []
    cost_cells: list[tuple[str, ...]] = []
    for line in lines:
        theirs = paper.FAIR.get(line.paper)
        cells.append(
            (
                line.label,
                spread(list(line.top1.values())),
                str(len(line.top1) or ""),
                signed_spread(list(line.difference.values())),
                spread(list(line.top5.values())),
                number(line.learning_rate, "g"),
                "" if theirs is None else f"{theirs[0]:.1f}",
            )
        )
        cost_cells.append(
            (
                line.label,
                f"{line.similarities / 1e6:.2f} M",
                f"{line.gflops:.2f}",
                f"{line.parameters / 1e6:.2f} M",
                number(line.run_images_s, ",.0f"),
                number(line.run_memory_gib, ".1f"),
                number(line.training_images_s, ",.0f"),
                number(line.inference_images_s, ",.0f"),
                "" if theirs is None else f"{theirs[1]:g} M",
            )
        )
    notes = (*verdicts(lines), *remarks(lines, study))
    return [
        Grid(f"Table fair_comp: {study.title}", columns, cells, notes),
        Grid("The same models: what they cost; images/s", costs, cost_cells),
    ]


def verdicts(lines: Sequence[Line]) -> tuple[str, ...]:
    """For each size of which all of the paper's rows have a result: is its order ours?"""
    rows = {line.paper: line for line in lines if line.top1}
    found = []
    for size in dict.fromkeys(label[-1] for label in paper.FAIR):
        theirs = sorted((n for n in paper.FAIR if n.endswith(f"-{size}")), key=lambda n: -paper.FAIR[n][0])
        if not all(name in rows for name in theirs):
            continue
        ours = sorted(theirs, key=lambda name: -statistics.mean(rows[name].top1.values()))
        same = "the paper's order" if ours == theirs else f"the paper has {' > '.join(theirs)}"
        found.append(f"Order by top-1: {' > '.join(rows[name].label for name in ours)}: {same}")
    return tuple(found)


def run(study: Study, results: Path) -> tuple[list[Line], list[Grid]]:
    """The tables of the results there are."""
    lines = lines_of(study, Records(results))
    return lines, grids(study, lines)


def save(study: Study, lines: Sequence[Line], tables: Sequence[Grid], out: Path) -> list[Path]:
    """Write tables and numbers, the paper's among them."""
    theirs = {label: {"top1": t, "similarities_millions": s} for label, (t, s) in paper.FAIR.items()}
    return save_table(study, lines, tables, out, NAME, paper=theirs)
