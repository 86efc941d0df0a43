"""``cbsa reproduce report``: every claim of the paper beside our committed results, as a page."""

import difflib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cbsa.cli.reproduce import prepare
from cbsa.cli.running import friendly

_SHOWN = 40  # lines of a difference


def report(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; pictures are on one beside it.")] = Path(
        "docs/REPRODUCTION.md"
    ),
    root: Annotated[
        Path, typer.Option(help="The repository, with benchmarks/results and tests.", file_okay=False)
    ] = Path("."),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the pages differ from the results.")
    ] = False,
) -> None:
    """Write what holds of the paper, claim by claim, from the committed results."""
    from cbsa._files import write_text_atomically
    from cbsa.reproduction.page import PICTURES
    from cbsa.reproduction.page import report as write_report
    from cbsa.reproduction.pictures import picture_page

    console = Console()
    if root == Path(".") and not Path("benchmarks/results").is_dir():
        raise typer.BadParameter(
            "this folder has no benchmarks/results, so that no claim would hold: run it in a copy of the "
            "repository, or name one by --root"
        )
    pictures = out.with_name(PICTURES)
    with friendly():
        pages = {out: write_report(root, out), pictures: picture_page(root, pictures)}
    if check:
        differ = [path for path, text in pages.items() if not _is_same(path, text, console)]
        if differ:
            console.print("[red]Out of date:[/red] write them with cbsa reproduce report", soft_wrap=True)
            raise typer.Exit(1)
        console.print(f"Up to date: {', '.join(map(str, pages))}", soft_wrap=True)
        return
    prepare(out.parent)
    for path, text in pages.items():
        write_text_atomically(path, text)
    console.print(f"Written: {', '.join(map(str, pages))}", soft_wrap=True)


def _is_same(path: Path, text: str, console: Console) -> bool:
    """Whether a page is what would be written; shows where it differs."""
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    if there == text:
        return True
    names = (str(path), "the results")
    lines = list(difflib.unified_diff(there.splitlines(), text.splitlines(), *names, lineterm="", n=0))
    for line in lines[:_SHOWN]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(f"… and {len(lines) - _SHOWN} lines more", highlight=False)
    return False


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)
