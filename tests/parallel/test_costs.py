"""The cost model: memory as PyTorch keeps it, and the tables of docs/scaling.md.

That bytes are those counted in collectives, the other modules test.
"""

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from cbsa.layers import CBSA, MSSA, ConvStem
from cbsa.models import Transformer
from cbsa.models.memory import kept_by_patch
from cbsa.parallel import costs, tables

SIZE = (256, 128)


def small_cbt():
    """A model most of whose memory is that of tokens."""
    kwargs = {"impl": "sdpa"}  # which keeps nothing of the size of A
    return Transformer(
        128, 16, embed_dim=64, depth=3, num_heads=4, representatives=(2, 2), attention_kwargs=kwargs
    )


def kept_bytes(model, images):
    """Bytes that the backward needs, parameters aside, each storage once."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(x):
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = model(images)
    assert out.requires_grad
    return sum(kept.values())


class Alive(TorchDispatchMode):
    """The most bytes of results that are alive at once, beside what is given."""

    def __init__(self, *given):
        super().__init__()
        self.now = self.most = 0
        self.given = [x.untyped_storage() for x in given]
        self.seen = weakref.WeakSet(self.given)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_iter(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage() not in self.seen:
                storage = x.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._forget, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def _forget(self, size):
        self.now -= size


def test_training_keeps_what_the_cost_model_says():
    model = small_cbt().train()
    images = torch.randn(1, 3, *SIZE)
    memory = costs.activation_memory(model, *SIZE, dtype=torch.float32)
    assert kept_bytes(model, images) == pytest.approx(memory.training, rel=0.05)
    model.set_grad_checkpointing()
    under_way = 7 * 4 * model.embed_dim * (SIZE[0] // 16) * (SIZE[1] // 16)
    assert kept_bytes(model, images) == pytest.approx(memory.recomputing - under_way, rel=0.05)
    assert memory.recomputing < 0.6 * memory.training


def test_a_model_with_an_mlp_keeps_what_decides_on_recomputation():
    """For each patch; a model of one block less, the stem's part is the same."""
    models = [
        Transformer(128, 16, embed_dim=64, depth=depth, num_heads=4, representatives=(2, 2),
                    attention_kwargs={"impl": "sdpa"}, feed_forward="mlp")
        for depth in (2, 3)
    ]  # fmt: skip
    images, patches = torch.randn(1, 3, *SIZE), SIZE[0] * SIZE[1] // 256
    fewer, more = (kept_bytes(model, images) for model in models)
    kept = [kept_by_patch(m.patch_embed, len(m.blocks), 64, "mlp") * patches * 4 for m in models]
    assert more == pytest.approx(kept[1], rel=0.05)
    assert more - fewer == pytest.approx(kept[1] - kept[0], rel=0.05)


def test_several_devices_divide_the_memory():
    model = tables.cbt_small()
    whole, part = (costs.activation_memory(model, 4096, 4096, devices) for devices in (1, 8))
    assert part.training * 8 == whole.training
    assert part.inference * 8 == whole.inference
    with pytest.raises(ValueError, match="4 rows of tokens cannot be divided among 5 processes"):
        costs.activation_memory(model, 64, 64, 5)
    with pytest.raises(ValueError, match="convolutional stem and ISTA alone"):
        costs.activation_memory(Transformer(stem="linear", device="meta"), 224, 224)


def test_bytes_of_the_operator_are_those_of_the_claim():
    """m·(d + 2) numbers per head forward and m·d backward; pooled representatives m·d more each way."""
    m, d, heads = 64, 64, 6
    forward, backward = costs.attention_bytes(CBSA(384, heads, init="learned"))
    assert (forward, backward) == (4 * heads * m * (d + 2), 4 * heads * m * d)
    forward, backward = costs.attention_bytes(CBSA(384, heads))
    assert (forward, backward) == (4 * heads * m * (2 * d + 2), 4 * heads * m * 2 * d)
    with pytest.raises(TypeError, match="tokens of MSSA cannot be spread"):
        costs.attention_bytes(MSSA(384, heads))


def test_the_stem_sends_rows():
    stem = ConvStem(16, patch_size=4)
    forward, backward = costs.stem_bytes(stem, 40)
    assert forward == 4 * (3 * 40 + 8 * 20 + 2 * (8 + 16) + 2)
    assert backward == 4 * (8 * 20 + 2 * (8 + 16))


def test_a_block_keeps_what_the_comparison_says():
    """Beside each other: one more block with CBSA, and one with softmax attention, on one device."""
    images, tokens = torch.randn(1, 3, *SIZE), SIZE[0] * SIZE[1] // 256 + 1
    for attention, kept, more in (
        ("cbsa", costs.context_parallel_kept, {"attention_kwargs": {"impl": "sdpa"}}),
        ("mhsa", costs.tensor_parallel_kept, {}),
    ):
        fewer, all_of_them = (
            kept_bytes(
                Transformer(
                    128, 16, embed_dim=64, depth=depth, num_heads=4, representatives=(2, 2),
                    attention=attention, **more,
                ),
                images,
            )
            for depth in (1, 2)
        )  # fmt: skip
        assert all_of_them - fewer == pytest.approx(kept(tokens, 64, 1, torch.float32), rel=0.05), attention


def test_the_document_has_the_bytes_that_were_measured():
    """And the cost model, which ``benchmarks/context_parallel_wire.py`` asks, is within 2 % of them."""
    root = Path(__file__).parents[2]
    document = " ".join((root / "docs" / "scaling.md").read_text().split())
    rows = json.loads((root / "benchmarks/results/cpu/wire.json").read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        model = row["processes"] * costs.context_parallel_wire(CBSA(384, 6), row["processes"], torch.float32)
        assert row["model_bytes"] == model
        assert row["sent_bytes"] == pytest.approx(model, rel=0.02)
        assert f"| {row['processes']} | {row['tokens']:,} | {row['sent_bytes'] / 1e6:.3f} MB |" in document


@pytest.mark.parametrize("table", [tables.layer_table, tables.layer_memory_table, tables.image_table])
def test_the_document_has_the_tables_of_the_cost_model(table):
    document = Path(__file__).parents[2] / "docs" / "scaling.md"
    assert table() in document.read_text()


@pytest.mark.parametrize("tile", [None, 2, 1], ids=["whole", "in tiles", "in the blocks"])
def test_inference_peaks_where_the_cost_model_says(tile):
    model, images = small_cbt().eval(), torch.randn(1, 3, *SIZE)
    if tile is not None:
        model.stem_bytes = tile * 2 * 8 * 8 * 64 * 4  # rows of patches, of 16
    gc.collect()
    with torch.no_grad(), Alive(images, *model.parameters()) as alive:
        model(images)
    given = images.numel() * images.element_size()
    memory = costs.activation_memory(model, *SIZE, dtype=torch.float32)
    assert alive.most + given == pytest.approx(memory.inference, rel=0.1)
