"""What a run leaves behind: its summary, or why it broke off."""

import json
import statistics
from pathlib import Path
from typing import Any

from cbsa._environment import environment
from cbsa._files import write_text_atomically
from cbsa.train.distributed import World
from cbsa.train.fields import to_dict
from cbsa.train.log import read_epochs
from cbsa.train.pipeline import Pipeline
from cbsa.train.state import Progress
from cbsa.train.task import Task


def summarise(
    task: Task[Any], folder: Path, data: Pipeline, metrics: Any, progress: Progress, world: World
) -> dict[str, Any]:
    """The result of a run as plain values; tables go to files of their own."""
    speeds = [r["images_per_second"] for r in read_epochs(folder)]
    return {
        "recipe": task.config.recipe,
        "model": task.model_name,
        **task.results(metrics, data.classes, progress, folder),
        "classes": data.classes,
        "best_epoch": progress.best_epoch,
        "epochs": task.config.epochs,
        "steps": progress.step,
        "seconds": progress.seconds,
        "images_per_second": statistics.median(speeds) if speeds else None,
        "unreadable_images": data.corrupt.count,
        "processes": world.size,
        "environment": environment(),
        "config": to_dict(task.config),
    }


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
