"""``cbsa export`` and ``cbsa convert``: models and weights as files."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cbsa.cli.running import friendly

Model = Annotated[str, typer.Option("--model", "-m", help="Name of a registered model; see `cbsa models`.")]
ModelOrFolder = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Folder of a run or of `cbsa convert`, weights that ship (MODEL.TAG), or a registered model.",
    ),
]


def export(
    model: ModelOrFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .onnx, or .pt2 for torch.export.")],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="With the name of a model: a folder, a .safetensors of ours, or a checkpoint of the authors."
        ),
    ] = None,
    max_size: Annotated[int, typer.Option(help="Largest height and width in pixels.")] = 4096,
) -> None:
    """Export a model for inference, with dynamic batch, height and width."""
    import torch

    from cbsa._files import prepare_folder
    from cbsa.models import Transformer
    from cbsa.models.export import export_onnx, export_program
    from cbsa.train.trained import open_trained

    if out.suffix not in (".onnx", ".pt2"):
        raise typer.BadParameter(f"{out} must end in .onnx or .pt2", param_hint="--out")
    console = Console()
    with friendly():
        prepare_folder(out.parent)
        trained = open_trained(model, None if weights is None else str(weights))
        if not isinstance(trained.model, Transformer):
            raise TypeError(
                f"{model} is a {type(trained.model).__name__}, which `cbsa export` does not know: it writes "
                "models of the CBT, CRATE, ToST (tost_…, not tost_cab_…), Agent and ViT (vit_conv_…) families"
            )
        if trained.weights is None:
            console.print("[yellow]No --weights given: the exported model has random ones.[/yellow]")
        fused = trained.model.fuse()
        try:
            with console.status(f"Exporting {escape(trained.architecture)}"):
                if out.suffix == ".onnx":
                    export_onnx(fused, out, max_size=max_size)
                else:
                    torch.export.save(export_program(fused, max_size=max_size), out)
        except ImportError as error:  # it names the extra
            raise typer.BadParameter(str(error)) from error
    console.print(f"[bold]Written: {escape(str(out))}[/bold]", soft_wrap=True)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of the authors, of CRATE or of ToST.")],
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights, config and card.")],
) -> None:
    """Convert a reference checkpoint to safetensors with a configuration and a model card.

    The folder then loads with timm.create_model("local-dir:FOLDER", pretrained=True).
    """
    from cbsa._files import prepare_folder
    from cbsa.models import create_model, load_reference_checkpoint, save_model

    with friendly():
        created = load_reference_checkpoint(create_model(model), checkpoint)
        prepare_folder(out)
        save_model(created, out, architecture=model)
    Console().print(
        f"[bold]Written: {escape(str(out))}[/bold] (model.safetensors, config.json, README.md)",
        soft_wrap=True,
    )
