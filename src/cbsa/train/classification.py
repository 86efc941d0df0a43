"""Training classifiers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._files import write_text_atomically
from cbsa.adaptation.stored import ARGUMENT
from cbsa.data import (
    Batch,
    CorruptLog,
    EvalLoader,
    ImageSource,
    TrainLoader,
    build_eval_loader,
    build_train_loader,
    normalise,
    open_source,
)
from cbsa.models import ToST, Transformer, save_model
from cbsa.models.checkpoints import save_timm_model
from cbsa.train.config import ModelConfig, TrainConfig
from cbsa.train.distributed import World
from cbsa.train.evaluation import Metrics, evaluate
from cbsa.train.initial import arguments_of, build_model
from cbsa.train.state import Progress
from cbsa.train.tables import confusion_csv
from cbsa.train.task import Objective, Task, Update, share_of


class ClassObjective(Objective):
    """Cross-entropy with label smoothing; timm's mixup and CutMix if the run has them.

    Args:
        config: settings of the run.
        num_classes: number of classes.
    """

    def __init__(self, config: TrainConfig, num_classes: int) -> None:
        self.config = config
        self.mixup = build_mixup(config, num_classes)
        self.smoothing = 0.0 if self.mixup else config.label_smoothing

    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Normalised images (B, C, h, w) and targets (B,), or (B, classes) if they are mixed."""
        data, targets = self.config.data, batch.targets
        images = normalise(batch.images, data.mean, data.std)
        if self.mixup is not None and len(images) % 2:
            raise ValueError(
                f"augment.mixup and augment.cutmix pair the images of a batch, but each process has "
                f"{len(images)} at a time; choose batch_size so that its share is even"
            )
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        return images, targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, classes)."""
        return F.cross_entropy(logits, targets, label_smoothing=self.smoothing)


def build_mixup(config: TrainConfig, num_classes: int) -> Any | None:
    """timm's mixup and CutMix if the run has them; it smooths the labels too."""
    if not (config.augment.mixup or config.augment.cutmix):
        return None
    from timm.data.mixup import Mixup

    return Mixup(  # type: ignore[no-untyped-call]
        mixup_alpha=config.augment.mixup,
        cutmix_alpha=config.augment.cutmix,
        label_smoothing=config.label_smoothing,
        num_classes=num_classes,
    )


class Classification(Task[Metrics]):
    """One class for each image.

    Args:
        config: settings of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config: TrainConfig = config

    @property
    def model_name(self) -> str:
        """Name of the model in the registry."""
        return self.config.model.name

    def fetch(self) -> None:
        """Download the data set, if the run may."""
        if self.config.data.download:
            self.open(train=True)
            self.open(train=False)

    def open(self, train: bool) -> ImageSource:
        """Open a split."""
        return open_source(self.config.data, train)

    def load_train(
        self, source: ImageSource, world: World, corrupt: CorruptLog, progress: Update
    ) -> TrainLoader:
        """This process's share of the training images."""
        config = self.config
        share = share_of(world, corrupt, progress)
        return build_train_loader(config.data, config.augment, source, **self.steps(), **share)

    def load_eval(
        self, source: ImageSource, world: World, corrupt: CorruptLog, progress: Update
    ) -> EvalLoader:
        """This process's share of the images to evaluate on."""
        share = share_of(world, corrupt, progress)
        return build_eval_loader(self.config.data, source, batch_size=self.images_at_once(world), **share)

    def build_model(self, num_classes: int) -> nn.Module:
        """Create the model with its initial weights."""
        return build_model(self.config, num_classes)

    def model_arguments(self, model: nn.Module) -> dict[str, Any]:
        """Arguments a model of ours was made with, beyond its name, and styles of an adapted one."""
        return arguments_of(model)

    def objective(self, num_classes: int, world: World) -> Objective:
        """Cross-entropy."""
        return ClassObjective(self.config, num_classes)

    def evaluate(
        self, model: nn.Module, batches: EvalLoader, num_classes: int, world: World, progress: Update
    ) -> Metrics:
        """Accuracy and loss; see :func:`cbsa.train.evaluate`."""
        return evaluate(
            model,
            batches,
            data=self.config.data,
            num_classes=num_classes,
            precision=self.config.runtime.precision,
            world=world,
            progress=progress,
        )

    def score(self, metrics: Metrics) -> float:
        """Top-1 accuracy."""
        return metrics.top1

    def record(self, metrics: Metrics) -> dict[str, float]:
        """Loss and accuracy."""
        return {"val_loss": metrics.loss, "val_top1": metrics.top1, "val_top5": metrics.top5}

    def describe(self, metrics: Metrics, num_classes: int) -> str:
        """Loss and accuracy; top-5 where it means something."""
        top5 = f"  top-5 {metrics.top5:5.2f} %" if num_classes > 5 else ""
        return f"  val {metrics.loss:.4f}  top-1 {metrics.top1:5.2f} %{top5}"

    def results(
        self, metrics: Metrics, classes: list[str], progress: Progress, folder: Path
    ) -> dict[str, Any]:
        """Accuracies; the confusion matrix goes to ``confusion.csv``."""
        if metrics.confusion is not None:
            write_text_atomically(folder / "confusion.csv", confusion_csv(metrics.confusion, classes))
        return {
            "top1": metrics.top1,
            "top5": metrics.top5,
            "loss": metrics.loss,
            "evaluated_images": metrics.count,
            "best_top1": progress.best,
        }

    def export(self, folder: Path, num_classes: int, state: dict[str, Any], summary: dict[str, Any]) -> None:
        """Write the final weights, averaged ones if the run keeps an average, into ``model/``.

        Models are written as ``timm.create_model("local-dir:…")`` reads them, but for adapted ones, which
        :func:`cbsa.adaptation.load_adapted` reads.
        """
        config, weights = self.config, state.get("average", state["model"])
        # The same model without the weights it began with: their file may be gone by now.
        kwargs = json.loads(state["model_args"]) | config.model.kwargs
        for name in ("pretrained", "checkpoint_path"):
            kwargs.pop(name, None)
        styles = {name: kwargs.pop(name) for name in (ARGUMENT,) if name in kwargs}
        model = build_model(replace(config, model=ModelConfig(config.model.name, kwargs)), num_classes)
        model.load_state_dict(weights)
        out = folder / "model"
        keys = ("mean", "std", "crop_pct", "interpolation")
        transform = {k: asdict(config.data)[k] for k in keys}
        if not isinstance(model, (Transformer, ToST)):
            transform["input_size"] = (config.data.in_chans, config.data.img_size, config.data.img_size)
            arguments = kwargs | styles
            save_timm_model(
                model, out, architecture=config.model.name, arguments=arguments, transform=transform
            )
            return
        cfg: Any = {**vars(model).get("pretrained_cfg", {}), **transform}
        model.pretrained_cfg = cfg
        card, classes = _card(config, summary), summary["classes"]
        save_model(model, out, architecture=config.model.name, card=card, classes=classes)


def _card(config: TrainConfig, summary: Mapping[str, Any]) -> str:
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
