"""``cbsa demo``: train on the embedded digits and look at the result."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings to change, as name=value, e.g. epochs=10.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run and the page.")] = Path(
        "outputs/demo"
    ),
) -> None:
    """Train a small CBT on 8×8 digits on the CPU, about a minute, and write a page about it.

    A second page looks into the CBT that ships with the package, which learnt photographs.

    Nothing is downloaded. Interrupted, the same command goes on; finished, it writes the page again.
    """
    from cbsa.cli.running import run_to_end
    from cbsa.cli.train import configure
    from cbsa.experiments.demo import write_demo_explorer, write_demo_page

    console = Console()
    config = configure("digits_cbt", settings)
    result = run_to_end(config, out / "run", console)
    with console.status("Drawing"):
        page = write_demo_page(result.folder, out)
        explorer = write_demo_explorer(out)
    console.print(
        f"Test accuracy [bold]{result.summary['top1']:.2f} %[/bold] on "
        f"{result.summary['evaluated_images']} images after {result.summary['seconds']:.0f} s of training.",
        highlight=False,
    )
    console.print(f"[bold]Open {page.resolve()}[/bold]", soft_wrap=True)
    console.print(
        f"[bold]Open {explorer.resolve()}[/bold] to look into a CBT that learnt photographs: click any patch",
        soft_wrap=True,
        highlight=False,
    )
