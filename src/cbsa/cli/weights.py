"""``cbsa export`` and ``cbsa convert``: models and weights as files."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

Model = Annotated[str, typer.Option("--model", "-m", help="Name of a registered model; see `cbsa models`.")]
ModelOrWeights = Annotated[
    str,
    typer.Option("--model", "-m", help="Name of a model, or of weights that ship (MODEL.TAG)."),
]


def _create(name: str, pretrained: bool = False) -> Any:
    from cbsa.models import create_model

    try:
        return create_model(name, pretrained=pretrained)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error


def export(
    model: ModelOrWeights,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .onnx, or .pt2 for torch.export.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights: .safetensors of ours, or a checkpoint of the authors.")
    ] = None,
    max_size: Annotated[int, typer.Option(help="Largest height and width in pixels.")] = 4096,
) -> None:
    """Export a model for inference, with dynamic batch, height and width."""
    import torch

    from cbsa.models import SHIPPED
    from cbsa.models.checkpoints import (
        CheckpointError,
        load_reference_checkpoint,
        load_weights,
        read_checkpoint,
    )
    from cbsa.models.export import export_onnx, export_program

    if out.suffix not in (".onnx", ".pt2"):
        raise typer.BadParameter(f"{out} must end in .onnx or .pt2", param_hint="--out")
    created = _create(model, pretrained=model in SHIPPED)
    try:
        if weights is not None and weights.suffix == ".safetensors":
            load_weights(created, read_checkpoint(weights), str(weights))
        elif weights is not None:
            load_reference_checkpoint(created, weights)
    except (CheckpointError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error), param_hint="--weights") from error
    console = Console()
    if weights is None and model not in SHIPPED:
        console.print("[yellow]No --weights given: the exported model has random ones.[/yellow]")
    created.fuse()
    with console.status(f"Exporting {model}"):
        if out.suffix == ".onnx":
            export_onnx(created, out, max_size=max_size)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            torch.export.save(export_program(created, max_size=max_size), out)
    console.print(f"[bold]Written: {out}[/bold]", soft_wrap=True)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of the authors, of CRATE or of ToST.")],
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights, config and card.")],
) -> None:
    """Convert a reference checkpoint to safetensors with a configuration and a model card.

    The folder then loads with timm.create_model("local-dir:FOLDER", pretrained=True).
    """
    from cbsa.models import CheckpointError, load_reference_checkpoint, save_model

    created = _create(model)
    try:
        load_reference_checkpoint(created, checkpoint)
    except (CheckpointError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error), param_hint="CHECKPOINT") from error
    save_model(created, out, architecture=model)
    Console().print(
        f"[bold]Written: {out}[/bold] (model.safetensors, config.json, README.md)", soft_wrap=True
    )
