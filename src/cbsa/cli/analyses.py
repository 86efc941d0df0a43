"""``cbsa reproduce``: the paper's analyses of trained models, one command each."""

from pathlib import Path
from typing import Annotated

import typer

from cbsa.cli.looking import looking, numbers

_PANEL = "What to look at"
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="Folder of a run, folder or file of weights, registered name, or digits:NAME; several may be "
        "given, LABEL=MODEL names one. By default a small CBT that learns digits on first use.",
        rich_help_panel=_PANEL,
    ),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(help="Weights for each registered name, in order.", rich_help_panel=_PANEL),
]
Untrained = Annotated[
    bool,
    typer.Option(
        "--untrained",
        help="Also look at each model with random weights: what training has to do with it.",
        rich_help_panel=_PANEL,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="NAME, NAME:FOLDER or FOLDER, e.g. digits, parquet:/data/tiny-imagenet; by default what the "
        "first model was trained on.",
        rich_help_panel=_PANEL,
    ),
]
Masks = Annotated[
    str | None,
    typer.Option(
        help="pets:FOLDER (Oxford-IIIT Pets with trimaps), voc:FOLDER (PASCAL VOC12), or digits (masks "
        "derived from their ink; the default for models of the digits).",
        rich_help_panel=_PANEL,
    ),
]
Split = Annotated[
    str, typer.Option(help="Split of the data; by default the one to evaluate on.", rich_help_panel=_PANEL)
]
Images = Annotated[
    int,
    typer.Option(
        min=0, help="How many images, evenly spaced over the split; 0 for all.", rich_help_panel=_PANEL
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Device = Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU if there is one.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for pictures and numbers [outputs/COMMAND].")
]
Eps = Annotated[float, typer.Option(help="Quantisation precision ε of the coding rate.")]
Mass = Annotated[float, typer.Option(help="Share of the attention that the thresholded map keeps.")]
Resize = Annotated[str, typer.Option(help="How maps are enlarged: nearest (as in DINO) or bilinear.")]
CountBoundary = Annotated[
    bool, typer.Option("--count-boundary", help="Count boundary pixels for foreground and background too.")
]


def fig_coding_rate(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Data = None,
    split: Split = "",
    images: Images = 256,
    eps: Eps = 0.1,
    batch: Batch = 64,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Draw the compression term by layer: do the layers compress? (figure coding-rate)."""
    from cbsa.experiments import coding_rate as experiment

    with looking(experiment.NAME, out, model, weights, untrained, device) as look:
        choice = look.images(data, split, images)
        results = experiment.run(look.subjects, choice, eps=eps, batch_size=batch, start=look.start)
        look.show([experiment.grid(results)], experiment.CAPTION)
        look.written(experiment.save(results, look.subjects, choice, look.out))


def fig_reduced_cr(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Data = None,
    split: Split = "",
    images: Images = 256,
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
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Draw reduced coding rates of tokens and representatives: do they go together? (figure reduced_cr)."""
    from cbsa.experiments import reduced_cr as experiment

    with looking(experiment.NAME, out, model, weights, untrained, device) as look:
        step = None if kappa == "own" else numbers("--kappa", kappa)[0]
        choice = look.images(data, split, images)
        results = experiment.run(
            look.subjects,
            choice,
            kappa=step,
            counterpart=counterpart,
            eps=eps,
            batch_size=batch,
            start=look.start,
        )
        look.show([experiment.grid(results)], experiment.CAPTION)
        look.written(experiment.save(results, look.subjects, choice, look.out))


def fig_attn_map(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", "-i", help="Image files to look at instead of --data.", rich_help_panel=_PANEL
        ),
    ] = None,
    data: Data = None,
    split: Split = "",
    images: Annotated[
        int, typer.Option(min=1, help="How many images of the data.", rich_help_panel=_PANEL)
    ] = 4,
    layers: Annotated[
        str, typer.Option(help="Layers from 1 on, separated by commas; by default first, middle and last.")
    ] = "",
    head: Annotated[int, typer.Option(min=0, help="Head from 1 on; 0 for the mean over heads.")] = 0,
    size: Annotated[
        int,
        typer.Option(min=0, help="Side of the images in pixels, 960 in the paper; 0 for the model's own."),
    ] = 0,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Draw where the class token looks, in early, middle and late layers (figure attn_map)."""
    from cbsa.experiments import attn_map as experiment

    with looking(experiment.NAME, out, model, weights, untrained, device) as look:
        chosen = list(image) if image else look.images(data, split, images)
        wanted = [int(number) - 1 for number in numbers("--layers", layers, whole=True)] or None
        results = experiment.run(
            look.subjects,
            chosen,
            layers=wanted,
            head=head - 1 if head else None,
            size=size or None,
            start=look.start,
        )
        look.show([experiment.grid(results)], experiment.CAPTION)
        look.written(experiment.save(results, look.subjects, chosen, look.out))


def table_zero_shot(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Masks = None,
    split: Split = "",
    images: Images = 0,
    mass: Mass = 0.6,
    resize: Resize = "nearest",
    count_boundary: CountBoundary = False,
    batch: Batch = 32,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Measure how well maps of the class token segment, zero-shot: best maps (table qual-seg)."""
    from cbsa.experiments import zero_shot as experiment

    settings = {"mass": mass, "resize": resize, "count_boundary": count_boundary}
    with looking(experiment.NAME, out, model, weights, untrained, device) as look:
        choice = look.masks(data, split, images)
        results = experiment.run(look.subjects, choice, **settings, batch_size=batch, start=look.start)  # type: ignore[arg-type]
        look.show([experiment.grid(results)], experiment.CAPTION, experiment.notes(choice))
        look.written(experiment.save(results, look.subjects, choice, look.out, settings))


def table_zero_shot_layers(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Masks = None,
    split: Split = "",
    images: Images = 0,
    mass: Mass = 0.6,
    resize: Resize = "nearest",
    count_boundary: CountBoundary = False,
    batch: Batch = 32,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Measure how well maps of the class token segment, zero-shot: by layer (table qual-seg-layers)."""
    from cbsa.experiments import zero_shot as experiment

    settings = {"mass": mass, "resize": resize, "count_boundary": count_boundary}
    with looking(experiment.LAYERS_NAME, out, model, weights, untrained, device) as look:
        choice = look.masks(data, split, images)
        results = experiment.run(look.subjects, choice, **settings, batch_size=batch, start=look.start)  # type: ignore[arg-type]
        look.show([experiment.layers_grid(results)], experiment.CAPTION, experiment.notes(choice))
        look.written(experiment.save_layers(results, look.subjects, choice, look.out, settings))


def fig_rank(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Data = None,
    split: Split = "",
    images: Images = 64,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Count singular values above this share of the largest; by default NumPy's rule."),
    ] = None,
    batch: Batch = 32,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Draw the rank of the extraction: how many representatives are in use? (appendix A).

    By default two models of the digits, with pooled and with learned initial representatives.
    """
    from cbsa.experiments import rank as experiment

    with looking(
        experiment.NAME, out, model, weights, untrained, device, ("digits:cbt", "digits:learned")
    ) as look:
        choice = look.images(data, split, images)
        results = experiment.run(
            look.subjects, choice, tolerance=tolerance, batch_size=batch, start=look.start
        )
        look.show([experiment.grid(results)], experiment.CAPTION)
        look.written(experiment.save(results, look.subjects, choice, look.out))


def fig_perturb(
    model: Models = None,
    weights: Weights = None,
    untrained: Untrained = False,
    data: Data = None,
    split: Split = "",
    images: Images = 1000,
    sigmas: Annotated[
        str, typer.Option(help="Standard deviations of the noise, separated by commas.")
    ] = "0,0.01,0.02,0.05,0.1,0.2,0.5",
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of the noise for each σ.")] = 3,
    parts: Annotated[
        str, typer.Option(help="Parameters to perturb: some of bases, output, own, separated by commas.")
    ] = "bases,output,own",
    batch: Batch = 128,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Draw accuracy under noise on the parameters of attention layers (figure segmentation).

    By default two models of the digits, a CBT and a ViT of the same width and depth.
    """
    from cbsa.cli.bench import split as separate
    from cbsa.experiments import perturb as experiment

    with looking(
        experiment.NAME, out, model, weights, untrained, device, ("digits:cbt", "digits:vit")
    ) as look:
        choice, chosen = look.images(data, split, images), separate(parts)
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
    commands = (fig_coding_rate, fig_reduced_cr, fig_attn_map, table_zero_shot, table_zero_shot_layers)
    for command in (*commands, fig_rank, fig_perturb):
        app.command(command.__name__.replace("_", "-"))(command)
