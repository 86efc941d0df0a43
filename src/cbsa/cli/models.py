"""``cbsa models``: the registered models and what they cost."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    from cbsa.experiments.complexity import Cost

_WHOLE = 120  # columns of a line in which no name is folded: what a file or a pipe gets


def models(
    pattern: Annotated[str, typer.Argument(help="Only models whose name contains this.")] = "",
) -> None:
    """Show the registered models: parameters, FLOPs and pairwise similarities, beside the paper's."""
    from cbsa._checks import did_you_mean
    from cbsa.models import MODELS

    names = [name for name in MODELS if pattern in name]
    if not names:
        raise typer.BadParameter(f"no model's name contains {pattern!r}{did_you_mean(pattern, MODELS)}")
    costs = measure(names)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WHOLE)
    console.print(cost_table(costs))


def measure(names: list[str]) -> "list[Cost]":
    """Costs of models, with a progress bar."""
    from cbsa.experiments.complexity import cost_of

    return [cost_of(n) for n in track(names, description="Counting", console=Console(), transient=True)]


def cost_table(costs: "list[Cost]") -> Table:
    """Ours beside the paper's, and the tags of the weights that ship."""
    from cbsa.models import SHIPPED

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    table = Table(
        title="Costs of one image, ours beside the [cyan]paper's[/cyan]",
        caption="GFLOPs: twice the multiply-accumulates by the paper's rule (N without CLS, no pooling) and "
        "counted by PyTorch. Pairs: similarities between tokens or with representatives, in M. "
        "Weights: tags of those that ship, see `cbsa weights`.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("model", overflow="fold")
    table.add_column("weights", overflow="fold")
    for column in ("parameters", "paper", "GFLOPs", "counted", "paper", "pairs", "paper"):
        style = "cyan" if column == "paper" else None
        table.add_column(column, justify="right", no_wrap=True, style=style)
    for c in costs:
        table.add_row(
            c.model,
            ", ".join(entry.tag for entry in SHIPPED.values() if entry.architecture == c.model),
            f"{c.parameters:,}",
            number(c.paper_parameters, ".1f"),
            f"{c.flops:.3f}",
            f"{c.flops_counted:.3f}",
            number(c.paper_flops, ".1f"),
            f"{c.similarities / 1e6:.3f}",
            number(c.paper_similarities, "g"),
        )
    return table
