"""``cbsa reproduce``: the paper's analyses of trained models, one command each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbsa.cli.looking import Looking
from cbsa.cli.looks import (
    PANEL,
    PARTS,
    SIGMAS,
    Batch,
    CountBoundary,
    Data,
    Eps,
    Mass,
    Parts,
    Resize,
    Seeds,
    Sigmas,
    Split,
    looks,
)
from cbsa.cli.options import numbers, split

if TYPE_CHECKING:
    from cbsa.experiments.images import ImageChoice


@looks(images=256)
def fig_coding_rate(look: Looking, choice: "ImageChoice", eps: Eps = 0.1, batch: Batch = 64) -> None:
    """Draw the compression term by layer: do the layers compress? (figure coding-rate)."""
    from cbsa.experiments import coding_rate as experiment

    results = experiment.run(look.subjects, choice, eps=eps, batch_size=batch, start=look.start)
    look.show([experiment.grid(results)], experiment.CAPTION)
    look.written(experiment.save(results, look.subjects, choice, look.out))


@looks(images=256)
def fig_reduced_cr(
    look: Looking,
    choice: "ImageChoice",
    kappa: Annotated[
        str, typer.Option(help="Step size κ of all heads, 1 in the paper; 'own' for what each has learned.")
    ] = "1",
    counterpart: Annotated[
        str,
        typer.Option(
            help="What tokens and representatives are compared with: operator (its output) or step "
            "(themselves plus it)."
        ),
    ] = "operator",
    eps: Eps = 0.1,
    batch: Batch = 64,
) -> None:
    """Draw reduced coding rates of tokens and representatives: do they go together? (figure reduced_cr)."""
    from cbsa.experiments import reduced_cr as experiment

    step = None if kappa == "own" else numbers("--kappa", kappa)[0]
    settings = {"kappa": step, "counterpart": counterpart, "eps": eps, "batch_size": batch}
    results = experiment.run(look.subjects, choice, **settings, start=look.start)  # type: ignore[arg-type]
    look.show([experiment.grid(results)], experiment.CAPTION)
    look.written(experiment.save(results, look.subjects, choice, look.out))


@looks(images=None)
def fig_attn_map(
    look: Looking,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", "-i", help="Image files to look at instead of --data.", rich_help_panel=PANEL
        ),
    ] = None,
    data: Data = None,
    split: Split = "",
    images: Annotated[
        int, typer.Option(min=1, help="How many images of the data.", rich_help_panel=PANEL)
    ] = 4,
    layers: Annotated[
        str, typer.Option(help="Layers from 1 on, separated by commas; by default first, middle and last.")
    ] = "",
    head: Annotated[int, typer.Option(min=0, help="Head from 1 on; 0 for the mean over heads.")] = 0,
    size: Annotated[
        int,
        typer.Option(min=0, help="Side of the images in pixels, 960 in the paper; 0 for the model's own."),
    ] = 0,
) -> None:
    """Draw where the class token looks, in early, middle and late layers (figure attn_map)."""
    from cbsa.experiments import attn_map as experiment

    chosen = list(image) if image else look.images(data, split, images)
    results = experiment.run(
        look.subjects,
        chosen,
        layers=[int(number) - 1 for number in numbers("--layers", layers, whole=True)] or None,
        head=head - 1 if head else None,
        size=size or None,
        start=look.start,
    )
    look.show([experiment.grid(results)], experiment.CAPTION)
    look.written(experiment.save(results, look.subjects, chosen, look.out))


@looks(images=None, models=("cbt_tiny_patch4_32.cifar10",))
def fig_overview(
    look: Looking,
    image: Annotated[
        Path | None,
        typer.Option("--image", "-i", help="Image file; by default a photograph.", rich_help_panel=PANEL),
    ] = None,
    layer: Annotated[int, typer.Option(min=1, help="Layer, from 1 on.")] = 1,
    head: Annotated[int, typer.Option(min=1, help="Head, from 1 on.")] = 1,
    patch: Annotated[
        str, typer.Option(help="ROW,COLUMN from 1 on of the patch that receives; by default the middle one.")
    ] = "",
    size: Annotated[int, typer.Option(min=1, help="Side of the image in pixels.")] = 160,
) -> None:
    """Draw what one head does with an image: gather, contract, broadcast (the steps of figure CBT)."""
    from cbsa.experiments import overview as experiment

    place = [int(number) - 1 for number in numbers("--patch", patch, whole=True)]
    if len(place) not in (0, 2):
        raise ValueError(f"--patch {patch!r}: expected ROW,COLUMN, for example 10,12")
    if len(look.subjects) != 1:
        raise ValueError(f"the picture is of one model, but --model was given {len(look.subjects)} times")
    (subject,) = look.subjects
    results = experiment.run(subject, image, layer=layer - 1, head=head - 1, size=size)
    before, after = results.rates
    paths = experiment.save(results, subject, look.out, (place[0], place[1]) if place else None)
    look.show([], f"Coding rate of the representatives: {before:.1f} nats extracted, {after:.1f} contracted.")
    look.written(paths)


@looks(images=0, masks=True)
def table_zero_shot(
    look: Looking,
    choice: "ImageChoice",
    mass: Mass = 0.6,
    resize: Resize = "nearest",
    count_boundary: CountBoundary = False,
    batch: Batch = 32,
) -> None:
    """Measure how well maps of the class token segment, zero-shot: best maps (table qual-seg)."""
    _segment(look, choice, batch, mass=mass, resize=resize, count_boundary=count_boundary)


@looks(images=0, masks=True)
def table_zero_shot_layers(
    look: Looking,
    choice: "ImageChoice",
    mass: Mass = 0.6,
    resize: Resize = "nearest",
    count_boundary: CountBoundary = False,
    batch: Batch = 32,
) -> None:
    """Measure how well maps of the class token segment, zero-shot: by layer (table qual-seg-layers)."""
    _segment(look, choice, batch, by_layer=True, mass=mass, resize=resize, count_boundary=count_boundary)


def _segment(
    look: Looking, choice: "ImageChoice", batch: int, *, by_layer: bool = False, **settings: Any
) -> None:
    """Segment, and show the best maps or those of each layer."""
    from cbsa.experiments import zero_shot as experiment

    results = experiment.run(look.subjects, choice, **settings, batch_size=batch, start=look.start)
    grid, save = (
        (experiment.layers_grid, experiment.save_layers) if by_layer else (experiment.grid, experiment.save)
    )
    look.show([grid(results)], experiment.CAPTION, experiment.notes(choice))
    look.written(save(results, look.subjects, choice, look.out, settings))


@looks(images=64, models=("digits:cbt", "digits:learned"))
def fig_rank(
    look: Looking,
    choice: "ImageChoice",
    tolerance: Annotated[
        float | None,
        typer.Option(help="Count singular values above this share of the largest; by default NumPy's rule."),
    ] = None,
    batch: Batch = 32,
) -> None:
    """Draw the rank of the extraction: how many representatives are in use? (appendix A).

    By default two models of the digits, with pooled and with learned initial representatives.
    """
    from cbsa.experiments import rank as experiment

    results = experiment.run(look.subjects, choice, tolerance=tolerance, batch_size=batch, start=look.start)
    look.show([experiment.grid(results)], experiment.CAPTION)
    look.written(experiment.save(results, look.subjects, choice, look.out))


@looks(images=1000, models=("digits:cbt", "digits:vit"))
def fig_perturb(
    look: Looking,
    choice: "ImageChoice",
    sigmas: Sigmas = SIGMAS,
    seeds: Seeds = 3,
    parts: Parts = PARTS,
    batch: Batch = 128,
) -> None:
    """Draw accuracy under noise on the parameters of attention layers (figure segmentation).

    By default two models of the digits, a CBT and a ViT of the same width and depth.
    """
    from cbsa.experiments import perturb as experiment

    chosen = split(parts)
    results = experiment.run(
        look.subjects,
        choice,
        sigmas=numbers("--sigmas", sigmas),
        seeds=seeds,
        parts=chosen,
        batch_size=batch,
        start=look.start,
    )
    look.show([experiment.grid(results)], experiment.CAPTION)
    look.written(experiment.save(results, look.subjects, choice, look.out, parts=chosen))


def register(app: typer.Typer) -> None:
    """Add the commands, named as their functions with hyphens."""
    commands = (fig_coding_rate, fig_reduced_cr, fig_attn_map, fig_overview, table_zero_shot)
    for command in (*commands, table_zero_shot_layers, fig_rank, fig_perturb):
        app.command(command.__name__.replace("_", "-"))(command)
