"""What a run leaves behind: its summary, its model, or why it broke off."""

import csv
import io
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from cbsa._environment import environment
from cbsa._files import write_text_atomically
from cbsa.models import ToST, Transformer, save_model
from cbsa.train.config import ModelConfig, TrainConfig
from cbsa.train.distributed import World
from cbsa.train.evaluation import Metrics
from cbsa.train.fields import to_dict
from cbsa.train.initial import build_model
from cbsa.train.log import read_epochs
from cbsa.train.pipeline import Pipeline
from cbsa.train.state import Progress


def summarise(
    config: TrainConfig, folder: Path, data: Pipeline, metrics: Metrics, progress: Progress, world: World
) -> dict[str, Any]:
    """The result of a run as plain values; its confusion matrix goes to ``confusion.csv``."""
    if metrics.confusion is not None:
        write_text_atomically(folder / "confusion.csv", _confusion_csv(metrics.confusion, data.classes))
    speeds = [r["images_per_second"] for r in read_epochs(folder)]
    return {
        "recipe": config.recipe,
        "model": config.model.name,
        "top1": metrics.top1,
        "top5": metrics.top5,
        "loss": metrics.loss,
        "evaluated_images": metrics.count,
        "classes": data.classes,
        "best_top1": progress.best_top1,
        "best_epoch": progress.best_epoch,
        "epochs": config.epochs,
        "steps": progress.step,
        "seconds": progress.seconds,
        "images_per_second": statistics.median(speeds) if speeds else None,
        "unreadable_images": data.corrupt.count,
        "processes": world.size,
        "environment": environment(),
        "config": to_dict(config),
    }


def export_model(
    config: TrainConfig, folder: Path, data: Pipeline, state: dict[str, Any], summary: dict[str, Any]
) -> None:
    """Write the final weights, averaged ones if the run keeps an average, into ``model/``.

    Models of ours are written as ``timm.create_model("local-dir:…")`` reads them.
    """
    weights: dict[str, Tensor] = state.get("average", state["model"])
    # The same model without the weights it began with: their file may be gone by now.
    kwargs = json.loads(state["model_args"]) | config.model.kwargs
    for name in ("pretrained", "checkpoint_path"):
        kwargs.pop(name, None)
    model = build_model(replace(config, model=ModelConfig(config.model.name, kwargs)), data.num_classes)
    model.load_state_dict(weights)
    out = folder / "model"
    if not isinstance(model, (Transformer, ToST)):
        out.mkdir(exist_ok=True)
        save_file({k: v.contiguous() for k, v in weights.items()}, out / "model.safetensors")
        return
    keys = ("mean", "std", "crop_pct", "interpolation")
    transform = {k: asdict(config.data)[k] for k in keys}
    cfg: Any = {**vars(model).get("pretrained_cfg", {}), **transform}
    model.pretrained_cfg = cfg
    save_model(model, out, architecture=config.model.name, card=_card(config, summary))


def report_non_finite(folder: Path, world: World, data: Pipeline, step: int, loss: float, lr: float) -> str:
    """Say where the loss stopped being finite, and write the images of that batch to a file."""
    epoch, place = divmod(step, data.train.steps_per_epoch)
    indices = data.train.batch_indices(epoch, place).tolist()
    names = [data.source.identify(i) for i in indices]
    path = folder / "non_finite.json"
    if world.is_main:
        content = {"step": step, "epoch": epoch + 1, "loss": str(loss), "lr": lr} | {
            "batch": indices,
            "images": names,
        }
        write_text_atomically(path, json.dumps(content, indent=2) + "\n")
    return (
        f"the loss is {loss} at step {step} (epoch {epoch + 1}) with learning rate {lr:.3g}. Images of this "
        f"batch: {', '.join(names[:4])}, … ({len(names)} in all, in {path}). The last checkpoint is from "
        "before. Take a smaller optimizer.lr, a longer schedule.warmup_epochs, or optimizer.clip_grad=1"
    )


def _confusion_csv(confusion: Tensor, classes: list[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["true \\ predicted", *classes])
    for name, row in zip(classes, confusion.tolist(), strict=True):
        writer.writerow([name, *row])
    return text.getvalue()


def _card(config: TrainConfig, summary: dict[str, Any]) -> str:
    return f"""---
library_name: timm
tags: [image-classification, timm, cbsa]
---
# {config.model.name}, trained on {config.data.dataset}

Top-1 {summary["top1"]:.2f} %, top-5 {summary["top5"]:.2f} % on {summary["evaluated_images"]:,} images
({config.data.img_size} px, {len(summary["classes"])} classes), last epoch.

| | |
|---|---|
| recipe | `{config.recipe}` |
| epochs, batch, seed | {config.epochs}, {config.batch_size}, {config.seed} |
| optimiser | {config.optimizer.name}, lr {config.optimizer.lr:g}, decay {config.optimizer.weight_decay:g} |
| time | {summary["seconds"]:.0f} s on {summary["processes"]} × {summary["environment"]["device"]} |
| versions | cbsa {summary["environment"]["cbsa"]}, torch {summary["environment"]["torch"]} |

```python
import cbsa.models, timm
model = timm.create_model("local-dir:PATH/OF/THIS/FOLDER", pretrained=True)
```

All settings are in `config.json` of the run. The licence of the data applies to these weights.
"""
