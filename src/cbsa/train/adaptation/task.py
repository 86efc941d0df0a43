"""Adapting a ViT: its attention is swapped, and it is fine-tuned, perhaps taught by the original."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from torch import nn

from cbsa.adaptation import AdaptedAttention, adapt
from cbsa.adaptation.adapt import chosen_layers
from cbsa.adaptation.costs import adapted_macs, paper_saving
from cbsa.adaptation.style import Style
from cbsa.models.compiling import compile_blocks
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.adaptation.distillation import DistillObjective, RecordedBlocks, record_blocks
from cbsa.train.adaptation.original import check_original
from cbsa.train.adaptation.progressive import replaced_by, replacements
from cbsa.train.adaptation.report import Accuracy, Baseline, read_baseline, write_report
from cbsa.train.classification import Classification
from cbsa.train.distributed import World
from cbsa.train.evaluation import Metrics
from cbsa.train.initial import build_model, original_classes
from cbsa.train.state import Progress
from cbsa.train.task import Objective

_SOFTMAX = Style("softmax")
_OUT_OF_THE_RUNNING = -1.0  # score of an epoch at whose end layers are still to be replaced


class Adaptation(Classification):
    """One class for each image, by a ViT whose attention is swapped.

    Args:
        config: settings of the run.
    """

    config: AdaptConfig

    def __init__(self, config: AdaptConfig) -> None:
        if config.model.weights is None and not config.model.kwargs.get("pretrained"):
            raise ValueError(
                "there is no trained model to adapt: give model.weights=FILE_OR_FOLDER or "
                "model.kwargs.pretrained=true"
            )
        if config.model.weights is None:
            check_original(config)
        super().__init__(config)
        self._teacher: nn.Module | None = None
        self._recorded = RecordedBlocks(), RecordedBlocks()  # of the original and of the model
        self._layers: list[int] = []
        self._styles: list[Style] = []  # of the original's layers, before the swap
        self._complete = False
        self._baseline: Baseline | None = None
        self._steps = 0

    @property
    def model_name(self) -> str:
        """Name of the original and the style."""
        return f"{self.config.model.name} → {self.config.swap.style}"

    # --- model -------------------------------------------------------------------------------------------

    def build_model(self, num_classes: int) -> nn.Module:
        """Create the adapted model with the original's weights, and the original if it is to teach."""
        model = self._swap(build_model(self.config, num_classes))
        if self.config.distill.what != "none":
            self._check_classifier(num_classes)
            self._teacher = build_model(self.config, num_classes)
            self._recorded = record_blocks(self._teacher), record_blocks(model)
        return model

    def _swap(self, model: nn.Module) -> nn.Module:
        """Put the style into all layers that are to have it."""
        swap, blocks = self.config.swap, getattr(model, "blocks", ())
        attentions = [getattr(block, "attn", None) for block in blocks]
        self._styles = [a.style if isinstance(a, AdaptedAttention) else _SOFTMAX for a in attentions]
        self._layers = chosen_layers(swap.layers, len(blocks))
        self._schedule()  # refuses more groups than layers
        return adapt(
            model,
            swap.style,
            layers=swap.layers,
            representatives=swap.representatives,
            kernel=swap.kernel,
            broadcast_scale=swap.broadcast_scale,
            broadcast=swap.broadcast,
        )

    def _check_classifier(self, num_classes: int) -> None:
        found = original_classes(self.config)
        if self.config.distill.uses("logits") and found != num_classes:
            raise ValueError(
                f"distill.what={self.config.distill.what!r}: the original has {found} classes and the data "
                f"{num_classes}, so that its classifier is new and has nothing to teach; take distill.what="
                "features, or fine-tune the original first (swap.style=softmax)"
            )

    def compile_model(self, model: nn.Module) -> None:
        """Compile the blocks of the model, and those of the original that teaches it."""
        super().compile_model(model)
        if self._teacher is not None:
            compile_blocks(self._teacher)

    def objective(self, num_classes: int, world: World) -> Objective:
        """Cross-entropy, and what the original says."""
        if self._teacher is None:
            return super().objective(num_classes, world)
        return DistillObjective(self.config, num_classes, self._teacher.to(world.device), self._recorded)

    # --- over time ---------------------------------------------------------------------------------------

    def begin(
        self, assess: Callable[[nn.Module], Metrics], num_classes: int, folder: Path, world: World
    ) -> None:
        """Evaluate the original, and its weights right after the swap, unless that was done before."""
        self._baseline = world.share(read_baseline(folder) if world.is_main else None)
        if self._baseline is not None:
            return
        data = self.config.data
        vit = build_model(self.config, num_classes).to(world.device)
        gflops, original = 2e-9 * adapted_macs(vit, data.img_size, data.in_chans), Accuracy.of(assess(vit))
        vit = self._swap(vit)
        swapped_gflops = 2e-9 * adapted_macs(vit, data.img_size, data.in_chans)
        self._baseline = Baseline(
            original,
            Accuracy.of(assess(vit)),
            gflops,
            swapped_gflops,
            paper_saved_gflops=2e-9 * paper_saving(vit, data.img_size),
            new_classifier=original_classes(self.config) != num_classes,
        )
        if world.is_main:
            write_report(folder, self._description(), self._baseline, None)

    def arrange(self, model: nn.Module, step: int, total_steps: int) -> bool:
        """Replace the layers whose turn it is; those to come keep the original's mixing."""
        self._steps = total_steps
        replaced = replaced_by(self._schedule(), step)
        self._complete = len(replaced) == len(self._layers)
        changed, blocks = False, cast(nn.Sequential, model.blocks)
        for index in self._layers:
            attention = getattr(blocks[index], "attn", None)
            if isinstance(attention, AdaptedAttention):
                style = self.config.swap.target() if index in replaced else self._styles[index]
                changed |= style != attention.style
                attention.style = style
        return changed

    def _schedule(self) -> list[tuple[int, list[int]]]:
        return replacements(self.config.swap, self._layers, self._steps)

    def score(self, metrics: Metrics) -> float:
        """Top-1 accuracy, once all layers are replaced: before, the best model is not one of the style."""
        return metrics.top1 if self._complete else _OUT_OF_THE_RUNNING

    # --- outcome -----------------------------------------------------------------------------------------

    def results(
        self, metrics: Metrics, classes: list[str], progress: Progress, folder: Path
    ) -> dict[str, Any]:
        """Accuracies before, right after the swap and after fine-tuning; ``adaptation.json`` and ``.md``."""
        assert self._baseline is not None
        write_report(folder, self._description(), self._baseline, Accuracy.of(metrics))
        return {
            **super().results(metrics, classes, progress, folder),
            "original_top1": self._baseline.original.top1,
            "swapped_top1": self._baseline.swapped.top1,
            "original_gflops": self._baseline.gflops,
            "gflops": self._baseline.swapped_gflops,
        }

    def _description(self) -> dict[str, Any]:
        """What the run does, for its report."""
        config, swap = self.config, self.config.swap
        schedule = self._schedule() if self._steps else []
        return {
            "model": config.model.name,
            "model_kwargs": config.model.kwargs,
            "weights": config.model.weights,
            "dataset": config.data.dataset,
            "img_size": config.data.img_size,
            "recipe": config.recipe,
            "epochs": config.epochs,
            "seed": config.seed,
            "style": swap.style,
            "layers": self._layers,
            "representatives": swap.representatives,
            "kernel": swap.kernel,
            "broadcast_scale": swap.broadcast_scale,
            "broadcast": swap.broadcast,
            "distill": asdict(config.distill),
            "replaced": [{"step": step, "layers": layers} for step, layers in schedule],
        }
