"""``cbsa reproduce table-fair``, ``table-transfer``, ``-ablations`` and ``-gap``: what studies have found."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cbsa.cli.looking import narrow_table
from cbsa.cli.reproduce import prepare, say_where
from cbsa.cli.running import friendly
from cbsa.cli.study import OUT

Results = Annotated[
    Path,
    typer.Option("--results", "-r", help="Folder of the study's results, as cbsa study --out writes it."),
]
Manifest = Annotated[str, typer.Option(help="The study, or a manifest of yours (FILE.toml).")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for table and numbers.")]


def table_fair(
    results: Results = OUT, study: Manifest = "fair", out: Out = Path("outputs/table-fair")
) -> None:
    """Show the fair comparison of attentions beside the paper's (table fair_comp); see cbsa study fair."""
    show_table("table-fair", results, study, out)


def table_transfer(
    results: Results = OUT, study: Manifest = "transfer", out: Out = Path("outputs/table-transfer")
) -> None:
    """Show pretrained models fine-tuned on CIFAR-10 and Pets (table CBT_tab); see cbsa study transfer."""
    show_table("table-transfer", results, study, out)


def table_ablations(
    results: Results = OUT, study: Manifest = "ablations", out: Out = Path("outputs/table-ablations")
) -> None:
    """Show what each choice of the paper is worth (section 3, appendix A); see cbsa study ablations."""
    show_table("table-ablations", results, study, out)


def table_gap(results: Results = OUT, study: Manifest = "gap", out: Out = Path("outputs/table-gap")) -> None:
    """Show what closes the gap of CBSA to softmax attention; see cbsa study gap."""
    show_table("table-gap", results, study, out)


def show_table(table: str, results: Path, name: str, out: Path) -> None:
    """Print and write the tables of a study, as :mod:`cbsa.experiments.fair` and others make them."""
    from cbsa.experiments import fair, options, transfer
    from cbsa.studies.manifest import read_study

    experiments = {"table-fair": fair, "table-transfer": transfer}
    experiment: Any = experiments.get(table, options)
    prepare(out)
    console = Console()
    with friendly():
        study = read_study(name)
        lines, tables = experiment.run(study, results)
    for grid in tables:
        console.print(narrow_table(grid))
    console.print(experiment.caption(study), highlight=False, markup=False)
    say_where(console, experiment.save(study, lines, tables, out))


def register(app: typer.Typer) -> None:
    """Add the commands, named as their functions with hyphens."""
    for command in (table_fair, table_transfer, table_ablations, table_gap):
        app.command(command.__name__.replace("_", "-"))(command)
