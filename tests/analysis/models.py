"""Small models in float64, and what enters their layers, taken by running the blocks by hand."""

import torch

from cbsa.models import Transformer


def small_model(attention="cbsa", *, depth=3, **kwargs):
    defaults = {"img_size": (20, 12), "patch_size": 4, "in_chans": 2, "num_classes": 5, "embed_dim": 24}
    defaults |= {"depth": depth, "num_heads": 3, "attention": attention, "representatives": (2, 2)}
    model = Transformer(**defaults | kwargs)
    return model.double().eval()


def pixels(*size, batch=2):
    return torch.randn(batch, 2, *size, dtype=torch.float64)


@torch.no_grad()
def states(model, images):
    """For each block: what enters it, what its attention leaves, what it returns, all (B, N, dim)."""
    x, grid = model._embed(images)
    result = []
    for block in model.blocks:
        attended = x + block.attn(block.norm1(x), grid)
        out = block(x, grid)
        result.append((x, attended, out))
        x = out
    return result, grid
