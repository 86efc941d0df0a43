"""Tables of the studies «ablations» and «gap»: one change of CBT-T a row."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from cbsa import paper
from cbsa.bench.tables import Grid
from cbsa.experiments import rank
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

_CAPTION = (
    "Top-1 on the validation images, last epoch, mean ± standard deviation over seeds; «difference» to the "
    "row it names, seed by seed. A difference below 1.5 points at one seed is noise."
)


def caption(study: Study) -> str:
    """How to read the tables, and what the paper has of them."""
    if study.name != "ablations":
        return _CAPTION
    agent, cbsa = (paper.FAIR[name][0] for name in ("Agent-T", "CBSA-T"))
    return (
        f"{_CAPTION} Of these changes the paper prints the accuracy of one, no contraction: {agent} % beside "
        f"{cbsa} % (paper, ImageNet-1k, T); and of tied bases in a segmentation decoder, in a figure."
    )


def ranks_of(study: Study, results: Path) -> dict[str, rank.MeanRanks]:
    """Ranks of the extraction's attention by label, of the rows that the study's analysis «rank» looks at.

    That is ``fig-rank`` on their trained models (appendix A); empty if it has not been done.
    """
    path = results / study.name / "rank" / f"{rank.NAME}.csv"
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        try:
            return rank.mean_ranks(csv.DictReader(file))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is not what cbsa reproduce {rank.NAME} writes ({error!r})") from error


def grids(
    study: Study, lines: Sequence[Line], ranks: Mapping[str, rank.MeanRanks] | None = None
) -> list[Grid]:
    """Accuracies and differences, and ranks of A where they are known; and what each change costs."""
    columns: tuple[str, ...] = ("change", "top-1 %", "seeds", "difference", "to row", "top-5 %")
    columns += ("rank of A", "effective") if ranks else ()
    costs: tuple[str, ...] = ("change", "GFLOPs", "parameters", "run images/s")
    costs += ("forward and backward", "inference") if study.speed else ()
    rows = {line.name: str(place) for place, line in enumerate(lines, 1)}
    cells: list[tuple[str, ...]] = []
    cost_cells: list[tuple[str, ...]] = []
    group = ""
    for line in lines:
        if line.group != group:
            cells.append((f"**{line.group}**", *[""] * (len(columns) - 1)))
        group = line.group
        label = f"{rows[line.name]}. {line.label}"
        cells.append(
            (
                label,
                spread(list(line.top1.values())),
                str(len(line.top1) or ""),
                signed_spread(list(line.difference.values())),
                rows.get(line.beside, ""),
                spread(list(line.top5.values())),
                *(_rank_cells(ranks.get(line.label)) if ranks else ()),
            )
        )
        alone = (line.training_images_s, line.inference_images_s) if study.speed else ()
        cost_cells.append(
            (
                label,
                f"{line.gflops:.3f}",
                f"{line.parameters / 1e6:.3f} M",
                *(number(value, ",.0f") for value in (line.run_images_s, *alone)),
            )
        )
    return [
        Grid(study.title, columns, cells, remarks(lines, study)),
        Grid("The same models: what they cost; images/s", costs, cost_cells),
    ]


def _rank_cells(found: rank.MeanRanks | None) -> tuple[str, str]:
    """Numerical rank of the largest possible one, and effective rank."""
    return ("", "") if found is None else (f"{found.rank:.1f} of {found.largest}", f"{found.effective:.1f}")


def run(study: Study, results: Path) -> tuple[list[Line], list[Grid]]:
    """The table of the results there are."""
    lines = lines_of(study, Records(results))
    return lines, grids(study, lines, ranks_of(study, results))


def save(study: Study, lines: Sequence[Line], tables: Sequence[Grid], out: Path) -> list[Path]:
    """Write table and numbers."""
    return save_table(study, lines, tables, out, f"table-{study.name}")
