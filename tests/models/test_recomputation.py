"""Activations that are recomputed in the backward: the same bits, and decided by size if not by the user."""

import copy

import pytest
import torch
from torch.nn import functional as F

from cbsa.models import Transformer
from cbsa.models.compiling import compile_blocks
from cbsa.models.memory import kept_by_patch


def tiny(**options):
    torch.manual_seed(0)
    return Transformer(
        32, 8, embed_dim=16, depth=2, num_heads=2, num_classes=5, representatives=(2, 2), **options
    )


def train(model, precision=None, steps=2):
    """Losses and gradients of some steps, and the buffers after them."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for _ in range(steps):
        images = torch.randn(3, 3, 40, 24)
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            loss = F.cross_entropy(model(images).float(), torch.tensor([0, 1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return [*results, *(b.clone() for b in model.buffers())]


class Calls:
    """How often the first stage of the stem and the first block run."""

    def __init__(self, model):
        self.stem = self.block = 0
        model.patch_embed.proj[0].register_forward_pre_hook(self._count_stem)
        model.blocks[0].register_forward_pre_hook(self._count_block)

    def _count_stem(self, *given):
        self.stem += 1

    def _count_block(self, *given):
        self.block += 1


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"feed_forward": "mlp"}, {"stem": "linear"}], ids=str)
def test_training_has_the_same_bits(options, precision):
    """Losses, every gradient, and the running statistics of BatchNorm, which counts each batch once."""
    model = tiny(**options)
    again = copy.deepcopy(model)
    model.set_grad_checkpointing(False)
    again.set_grad_checkpointing()
    for a, b in zip(train(model, precision), train(again, precision), strict=True):
        assert torch.equal(a, b)
    if not options:
        assert again.patch_embed.proj[0][1].num_batches_tracked == 2


def test_a_compiled_model_counts_each_batch_once_too():
    model = tiny()
    again = copy.deepcopy(model)
    again.set_grad_checkpointing()
    compile_blocks(again, backend="aot_eager")
    for a, b in zip(train(model, steps=1), train(again, steps=1), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert again.patch_embed.proj[0][1].num_batches_tracked == 1


def test_a_size_decides_unless_the_user_does():
    """3 images of 5×3 patches keep as much as the cost model says; that may be kept, or a byte less."""
    model = tiny()
    assert model.grad_checkpointing is None
    kept = 3 * 15 * 4 * kept_by_patch(model.patch_embed, 2, 16, "ista")
    for limit, enable, runs in (
        (kept, None, 1),
        (kept - 1, None, 2),
        (kept - 1, False, 1),
        (kept, True, 2),
        (32 << 30, None, 1),
    ):
        model.kept_bytes = limit
        model.set_grad_checkpointing(enable)
        calls = Calls(model)
        train(model, steps=1)
        assert (calls.stem, calls.block) == (runs, runs), (limit, enable)
    calls = Calls(model)
    model.kept_bytes = 0
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    assert (calls.stem, calls.block) == (1, 1)


def test_half_precision_keeps_half():
    model = tiny()
    model.kept_bytes = 3 * 15 * 2 * kept_by_patch(model.patch_embed, 2, 16, "ista")
    calls = Calls(model)
    train(model, torch.bfloat16, steps=1)
    assert calls.block == 1
    train(model, steps=1)
    assert calls.block == 3
