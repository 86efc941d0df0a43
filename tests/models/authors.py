"""The authors' classifier written out straight, on a state dict in their layout: an independent truth.

It follows the facts of their code (names, order of operations, shifted pooling), not ours.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F


def make_state_dict(
    dim: int, depth: int, heads: int, classes: int, side: int, kind: str
) -> dict[str, Tensor]:
    """Random weights of ``kind`` (cbsa, mssa, tssa; crate has a linear stem) in their layout."""

    def normal(*shape: int, std: float = 0.1) -> Tensor:
        return std * torch.randn(*shape)

    state = {"pos_embedding": normal(1, 1 + side * side, dim), "cls_token": normal(1, 1, dim)}
    if kind == "crate":
        pixels = 3 * 16 * 16
        for index, (rows, columns) in {1: (pixels, 0), 2: (dim, pixels), 3: (dim, 0)}.items():
            state[f"to_patch_embedding.{index}.weight"] = (
                normal(rows, columns) if columns else 1 + normal(rows)
            )
            state[f"to_patch_embedding.{index}.bias"] = normal(rows)
    else:
        widths = [3, dim // 8, dim // 4, dim // 2, dim]
        for index, (cin, cout) in enumerate(pairwise(widths)):
            stage = f"to_patch_embedding.proj.{2 * index}"
            state[f"{stage}.0.weight"] = normal(cout, cin, 3, 3)
            state[f"{stage}.1.weight"], state[f"{stage}.1.bias"] = 1 + normal(cout), normal(cout)
            state[f"{stage}.1.running_mean"] = normal(cout)
            state[f"{stage}.1.running_var"] = 1 + normal(cout).abs()
            state[f"{stage}.1.num_batches_tracked"] = torch.tensor(7)
    for i in range(depth):
        for part in (0, 1):
            state[f"transformer.layers.{i}.{part}.norm.weight"] = 1 + normal(dim)
            state[f"transformer.layers.{i}.{part}.norm.bias"] = normal(dim)
        attention = f"transformer.layers.{i}.0.fn"
        state[f"{attention}.{'proj' if kind == 'cbsa' else 'qkv'}.weight"] = normal(dim, dim)
        out = f"{attention}.to_out.0" if kind == "crate" else f"{attention}.to_out"
        state[f"{out}.weight"], state[f"{out}.bias"] = normal(dim, dim), normal(dim)
        if kind == "cbsa":
            state[f"{attention}.step_x"] = normal(heads, 1, 1, std=1.0)
            state[f"{attention}.step_rep"] = normal(heads, 1, 1, std=1.0)
        if kind == "tssa":
            state[f"{attention}.temp"] = 1 + normal(heads, 1)
        state[f"transformer.layers.{i}.1.fn.weight"] = normal(dim, dim)
    state["mlp_head.0.weight"], state["mlp_head.0.bias"] = 1 + normal(dim), normal(dim)
    state["mlp_head.1.weight"], state["mlp_head.1.bias"] = normal(classes, dim), normal(classes)
    return state


def logits(
    state: dict[str, Tensor], images: Tensor, heads: int, kind: str, *, shifted: bool = True
) -> Tensor:
    """Classify images; ``shifted`` pools CLS and all patches but the last, as their code does."""
    dim = state["cls_token"].shape[-1]
    x = _stem(state, images, kind)
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), x], 1) + state["pos_embedding"]
    depth = 1 + max(int(k.split(".")[2]) for k in state if k.startswith("transformer.layers."))
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        normed = F.layer_norm(x, (dim,), state[f"{layer}.0.norm.weight"], state[f"{layer}.0.norm.bias"])
        x = x + _attention(state, f"{layer}.0.fn", normed, heads, kind, shifted)
        x = F.layer_norm(x, (dim,), state[f"{layer}.1.norm.weight"], state[f"{layer}.1.norm.bias"])
        d = state[f"{layer}.1.fn.weight"]
        x = F.relu(x + 0.1 * (x @ d - x @ d.T @ d) - 0.01)
    cls = F.layer_norm(x[:, 0], (dim,), state["mlp_head.0.weight"], state["mlp_head.0.bias"])
    return cls @ state["mlp_head.1.weight"].T + state["mlp_head.1.bias"]


def _stem(state: dict[str, Tensor], images: Tensor, kind: str) -> Tensor:
    if kind == "crate":
        patches = images.unfold(2, 16, 16).unfold(3, 16, 16)  # (b, c, h, w, p1, p2)
        x = patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # (b, h w, p1 p2 c)
        name = "to_patch_embedding"
        x = F.layer_norm(x, x.shape[-1:], state[f"{name}.1.weight"], state[f"{name}.1.bias"])
        x = x @ state[f"{name}.2.weight"].T + state[f"{name}.2.bias"]
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.3.weight"], state[f"{name}.3.bias"])
    x = images
    for index in (0, 2, 4, 6):
        stage = f"to_patch_embedding.proj.{index}"
        x = F.conv2d(x, state[f"{stage}.0.weight"], stride=2, padding=1)
        names = ("running_mean", "running_var", "weight", "bias")
        x = F.batch_norm(x, *(state[f"{stage}.1.{n}"] for n in names))
        x = F.gelu(x) if index < 6 else x
    return x.flatten(2).transpose(1, 2)


def _attention(
    state: dict[str, Tensor], name: str, x: Tensor, heads: int, kind: str, shifted: bool
) -> Tensor:
    b, n, dim = x.shape
    p = dim // heads
    w = x @ state[f"{name}.{'proj' if kind == 'cbsa' else 'qkv'}.weight"].T
    split = w.reshape(b, n, heads, p).transpose(1, 2)
    if kind == "cbsa":
        side = int(n**0.5)
        patches = w[:, :-1] if shifted else w[:, 1:]
        maps = patches.transpose(1, 2).reshape(b, dim, side, side)
        reps = F.adaptive_avg_pool2d(maps, (8, 8)).flatten(2).transpose(1, 2)
        reps = reps.reshape(b, 64, heads, p).transpose(1, 2)
        attn = (reps @ split.mT * p**-0.5).softmax(-1)
        reps = reps + state[f"{name}.step_rep"] * (attn @ split)
        out = state[f"{name}.step_x"] * (attn.mT @ ((reps @ reps.mT * p**-0.5).softmax(-1) @ reps))
    elif kind == "tssa":
        pi = ((split / split.norm(dim=2, keepdim=True)) ** 2).sum(-1)
        pi = (pi * state[f"{name}.temp"]).softmax(1)
        moments = (pi / (pi.sum(-1, keepdim=True) + 1e-8)).unsqueeze(2) @ split**2
        out = -split * pi.unsqueeze(-1) / (1 + moments)
    else:
        out = (split @ split.mT * p**-0.5).softmax(-1) @ split
    out = out.transpose(1, 2).reshape(b, n, dim)
    suffix = ".to_out.0" if kind == "crate" else ".to_out"
    return out @ state[f"{name}{suffix}.weight"].T + state[f"{name}{suffix}.bias"]
