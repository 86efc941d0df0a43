"""Making weights that ship out of a finished run."""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cbsa._checks import check_choice
from cbsa._files import prepare_folder, write_text_atomically
from cbsa.data.terms import TERMS, Terms
from cbsa.models import MODELS, SHIPPED, Shipped, Transformer, save_model
from cbsa.models.registry import UNTRAINED
from cbsa.models.shipped import FOLDER
from cbsa.train.assess import assess, config_of_run
from cbsa.train.card import write_card
from cbsa.train.command import command_of
from cbsa.train.config import TrainConfig
from cbsa.train.run_folder import read_config, read_summary
from cbsa.train.trained import open_trained


def ship_run(
    run: Path,
    tag: str,
    *,
    dataset: str | None = None,
    root: str | None = None,
    note: str = "",
    out: Path = FOLDER,
    console: Console | None = None,
) -> Shipped:
    """Make an entry ``MODEL.TAG`` of the shipped weights: bfloat16 safetensors, configuration and model card.

    Args:
        run: the folder of a finished run of a registered model.
        tag: what to call the weights beside others of the model: lower-case letters, digits and ``_``.
        dataset: a name of :data:`cbsa.data.terms.TERMS`; by default that of the run's settings.
        root: folder of the data set; where it is given, or the run needs none, the weights are evaluated
            before and after rounding. It is not written anywhere.
        note: a sentence or two for the card: what the weights are for.
        out: folder of the entries; by default the package's own.
        console: where to show progress.

    Returns:
        The entry; it is known to timm from the next start of Python on.
    """
    config, summary = _finished(run)
    if not re.fullmatch(r"[a-z0-9_]+", tag) or tag == UNTRAINED:
        raise ValueError(
            f"tag {tag!r}: expected lower-case letters, digits and '_', such as 'cifar10', not {UNTRAINED!r}"
        )
    name, architecture = f"{config.model.name}.{tag}", config.model.name
    if (out / name).exists():
        raise ValueError(f"{out / name} is there already: choose another tag, or remove that folder first")
    key = check_choice("dataset", dataset or config.data.dataset, TERMS)
    model = open_trained(str(run)).model
    assert isinstance(model, Transformer)
    prepare_folder(out)
    with tempfile.TemporaryDirectory(dir=out, prefix=".") as scratch:
        folder = Path(scratch) / name
        classes = summary["classes"]
        model.pretrained_cfg = json.loads((run / "model" / "config.json").read_text())["pretrained_cfg"]
        save_model(model, folder, architecture=architecture, classes=classes, dtype=torch.bfloat16)
        accuracy: dict[str, Any] = {
            "images": summary["evaluated_images"],
            "run": summary["top1"],
            "precision": config.runtime.precision,
            "float32": None,
            "shipped": None,
        }
        if root is not None or config.data.root is None:
            at = replace(config_of_run(run), data=replace(config.data, root=root))
            accuracy["float32"] = _top1(at, at.model.weights, console)
            accuracy["shipped"] = _top1(at, str(folder), console)
        training = {
            "what": MODELS[architecture][1],
            "note": note,
            "parameters": sum(p.numel() for p in model.parameters()),
            "data": _data(TERMS[key]),
            "run": _run(config, summary, key, name),
            "accuracy": accuracy,
            "environment": summary["environment"],
        }
        stored = json.loads((folder / "config.json").read_text()) | {"training": training}
        write_text_atomically(folder / "config.json", json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
        shipped = Shipped(name, out / name, stored)
        write_text_atomically(folder / "README.md", write_card(shipped))
        for file in folder.iterdir():
            file.chmod(0o644)  # safetensors writes for its owner alone
        os.replace(folder, shipped.folder)
    return shipped


def _finished(run: Path) -> tuple[TrainConfig, Mapping[str, Any]]:
    """Settings and result of a run that can ship."""
    config, summary = read_config(run), read_summary(run)
    if summary is None or not (run / "model" / "model.safetensors").is_file():
        raise ValueError(f"{run} is not finished: run its command again, it goes on, and add it then")
    if config.model.name not in MODELS or config.model.name.startswith("tost_cab_"):
        raise ValueError(f"{run} trains {config.model.name}: weights of our own Transformer ship, no others")
    if config.model.weights is not None and config.model.weights not in SHIPPED:
        raise ValueError(
            f"{run} began with weights from {config.model.weights}, of which a card could not tell where "
            "they come from: ship those first, and fine-tune from their name"
        )
    return config, summary


def _top1(config: TrainConfig, weights: str | None, console: Console | None) -> float:
    """Accuracy of weights in float32."""
    runtime = replace(config.runtime, device="auto", precision="fp32", compile=False)
    at = replace(config, model=replace(config.model, weights=weights), runtime=runtime)
    return assess(at, console).metrics.top1


def _data(terms: Terms) -> dict[str, str]:
    return {"title": terms.title, "source": terms.source, "terms": terms.terms}


def _run(config: TrainConfig, summary: Mapping[str, Any], dataset: str, name: str) -> dict[str, Any]:
    """How the weights came about; the data set is given as lying under ``/data``."""
    root = None if config.data.root is None else f"/data/{dataset}"
    return {
        "command": command_of(config, root=root, out=f"runs/{name}"),
        "recipe": config.recipe,
        "epochs": config.epochs,
        "steps": summary["steps"],
        "batch_size": config.batch_size,
        "optimizer": config.optimizer.name,
        "lr": config.optimizer.lr,
        "weight_decay": config.optimizer.weight_decay,
        "precision": config.runtime.precision,
        "seed": config.seed,
        "seconds": summary["seconds"],
        "processes": summary["processes"],
    }
