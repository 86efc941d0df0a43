"""``cbsa models``: the registered models and what they cost."""

import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    from cbsa.experiments.complexity import Cost

_WIDE = 102  # characters that the whole table takes


def models(
    pattern: Annotated[
        str, typer.Argument(help="Only models whose name contains this; * stands for anything.")
    ] = "",
) -> None:
    """Show the registered models: parameters, FLOPs and pairwise similarities, beside the paper's."""
    from cbsa._checks import did_you_mean
    from cbsa.models import MODELS

    names = fnmatch.filter(MODELS, f"*{pattern}*")
    if not names:
        raise typer.BadParameter(f"no model's name contains {pattern!r}{did_you_mean(pattern, MODELS)}")
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console.width = max(console.width, _WIDE)
    console.print(cost_table(measure(names), console.width))


def measure(names: list[str]) -> "list[Cost]":
    """Costs of models, with a progress bar."""
    from cbsa.experiments.complexity import cost_of

    return [cost_of(n) for n in track(names, description="Counting", console=Console(), transient=True)]


def cost_table(costs: "list[Cost]", width: int) -> Table:
    """Ours beside the paper's, and the tags of the weights that ship.

    Where ``width`` characters do not hold it, two columns are left out and parameters are in millions, so
    that names stay whole.
    """
    from cbsa.models import SHIPPED

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    whole = width >= _WIDE
    notes = [
        "GFLOPs: twice the multiply-accumulates by the paper's rule (N without CLS, no pooling)"
        + (" and counted by PyTorch." if whole else "."),
        "Pairs: similarities between tokens or with representatives, in M.",
        "Weights: tags of those that ship, see `cbsa weights`."
        if whole
        else "Params in M. A wider terminal shows what PyTorch counts, and the weights that ship.",
    ]
    table = Table(
        title="Costs of one image, ours beside the [cyan]paper's[/cyan]",
        caption=" ".join(notes),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=whole,
    )
    table.add_column("model", overflow="fold")
    if whole:
        table.add_column("weights", overflow="fold")
    numbers = ["parameters" if whole else "params", "paper", "GFLOPs", "paper", "pairs", "paper"]
    for column in numbers[:3] + ["counted"] * whole + numbers[3:]:
        style = "cyan" if column == "paper" else None
        table.add_column(column, justify="right", no_wrap=True, style=style)
    for c in costs:
        tags = ", ".join(entry.tag for entry in SHIPPED.values() if entry.architecture == c.model)
        table.add_row(
            c.model,
            *([tags] * whole),
            f"{c.parameters:,}" if whole else f"{c.parameters / 1e6:.3f}",
            number(c.paper_parameters, ".1f"),
            f"{c.flops:.3f}",
            *([f"{c.flops_counted:.3f}"] * whole),
            number(c.paper_flops, ".1f"),
            f"{c.similarities / 1e6:.3f}",
            number(c.paper_similarities, "g"),
        )
    return table
