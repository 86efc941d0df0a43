"""``cbsa explain``: look into models, token by token, in one page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def explain(
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Image files; without any, some of the data set of the (first) model's run, or photographs."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Folder of a run (of cbsa adapt too) or of weights, name of weights that ship (MODEL.TAG), "
            "of a model, or of a ViT of timm, whose weights are then downloaded, or digits:NAME; again for "
            "models side by side. LABEL=MODEL says what to call one, 'shipped' is the CBT that ships and its "
            "twins. By default that CBT.",
        ),
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option("--weights", "-w", help="Weights of a model given by name; one for each such --model."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Text file with the names of the classes, one a line.")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="How many images of the run's data set, without any IMAGE.")
    ] = 6,
    size: Annotated[
        int | None,
        typer.Option(
            help="Side of the images in pixels; by default each model's own (for the photographs 24 patches, "
            "if that is more)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path(
        "outputs/explorer.html"
    ),
) -> None:
    """Write one HTML page to explore what models do with images: attention, representatives, compression.

    Click any patch to see where it looks in every layer and head. The file opens from disk, without a server
    or a network.
    """
    from cbsa.cli.looking import train_digits
    from cbsa.experiments import digits
    from cbsa.explain import at_photographs, sample_images, write_explorer
    from cbsa.explain.models import open_subjects
    from cbsa.models import SHIPPED

    console = Console()
    try:
        for name in model or []:
            train_digits(name, console)
        names = ["=".join(filter(None, digits.resolve(name))) for name in model or []]
        with console.status("Opening models") as status:
            subjects = open_subjects(names, weights or [], labels)
            shown = images or sample_images(subjects[0], samples)
            if not images and not subjects[0].run:
                subjects = [at_photographs(subject) for subject in subjects]
            page = write_explorer(
                shown, subjects, out, size=size, say=lambda line: status.update(escape(line))
            )
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error
    for subject in subjects:
        if not subject.trained:
            tags = [name for name, entry in SHIPPED.items() if entry.architecture == subject.architecture]
            hint = f"give --weights, or --model {tags[0]}" if tags else "give --weights"
            console.print(f"[yellow]{escape(subject.name)} has random weights: {hint}.[/yellow]")
    console.print(f"{page.stat().st_size / 1e6:.1f} MB", highlight=False)
    console.print(f"[bold]Open {escape(str(page.resolve()))}[/bold]", soft_wrap=True)
