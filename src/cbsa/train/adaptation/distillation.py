"""Learning from the original model: its logits, and its tokens after each block."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.classification import ClassObjective


class RecordedBlocks(nn.Sequential):
    """The blocks of a ViT, which keep the tokens that each of them returns while they are asked to.

    Names of parameters stay as they are. The blocks may be compiled: what is kept is taken outside of them.
    Models that go through their blocks themselves, as those with rotary embeddings do, are recorded too.
    """

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self._kept: list[Tensor] | None = None

    def __iter__(self) -> Iterator[nn.Module]:
        """The blocks, or while they are recorded, calls of them whose tokens are kept."""
        blocks = super().__iter__()
        return blocks if self._kept is None else (partial(self._keep, block) for block in blocks)  # type: ignore[misc]

    def _keep(self, block: nn.Module, x: Tensor, **options: Any) -> Tensor:
        tokens: Tensor = block(x, **options)
        if self._kept is not None:
            self._kept.append(tokens)
        return tokens

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Keep tokens (B, N, dim), one entry for each block, in the list that is given."""
        kept: list[Tensor] = []
        self._kept = kept
        try:
            yield kept
        finally:
            self._kept = None


def record_blocks(vit: Any) -> RecordedBlocks:
    """Let a ViT of timm record the tokens of its blocks, in place."""
    blocks = RecordedBlocks(*vit.blocks)
    vit.blocks = blocks
    return blocks


class DistillObjective(ClassObjective):
    """Labels, and what the original says of the same images; see :class:`DistillConfig`.

    Args:
        config: settings of the run.
        num_classes: number of classes.
        teacher: the original.
        tokens: recorded blocks of the original and of the model that learns.
    """

    def __init__(
        self,
        config: AdaptConfig,
        num_classes: int,
        teacher: nn.Module,
        tokens: tuple[RecordedBlocks, RecordedBlocks],
    ) -> None:
        super().__init__(config, num_classes)
        self.distill, self.tokens = config.distill, tokens
        self.teacher = teacher.eval().requires_grad_(False)

    def measure(
        self, model: nn.Module, images: Tensor, targets: Tensor, precision: AbstractContextManager[Any]
    ) -> Tensor:
        """Run both models on the images and return the weighted loss."""
        original, student = self.tokens
        with torch.no_grad(), precision, self._recorded(original) as theirs:
            truth = self.teacher(images)  # (B, classes)
        with precision, self._recorded(student) as ours:
            logits = model(images).float()
        loss = self.distill.labels * self.loss(logits, targets)
        if self.distill.uses("logits"):
            loss = loss + self.distill.logits * self.divergence(logits, truth.float())
        if self.distill.uses("features"):
            distances = [token_distance(x, y) for x, y in zip(ours, theirs, strict=True)]
            loss = loss + self.distill.features * torch.stack(distances).mean()
        return loss

    def _recorded(self, blocks: RecordedBlocks) -> AbstractContextManager[list[Tensor]]:
        """Record tokens if they are compared; none otherwise, as they would be held in memory."""
        return blocks.recording() if self.distill.uses("features") else nullcontext([])

    def divergence(self, logits: Tensor, truth: Tensor) -> Tensor:
        """τ²·KL(truth ‖ logits), both (B, classes) over τ, mean over the images."""
        tau = self.distill.temperature
        ours, theirs = (x.div(tau).log_softmax(-1) for x in (logits, truth))
        return tau**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def token_distance(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference of tokens (B, N, dim), each normalised to mean 0 and variance 1.

    The tokens of a ViT's layers differ in size by orders of magnitude: without it, a few would be all that
    counts.
    """
    width = x.shape[-1:]
    return F.mse_loss(F.layer_norm(x.float(), width), F.layer_norm(y.float(), width))
