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


def make_tost_state_dict(dim: int, depth: int, heads: int, classes: int) -> dict[str, Tensor]:
    """Random weights of the original ToST in its layout (XCiT's names)."""

    def normal(*shape: int, std: float = 0.1) -> Tensor:
        return std * torch.randn(*shape)

    def linear(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": normal(rows, columns), f"{name}.bias": normal(rows)}

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + normal(dim), f"{name}.bias": normal(dim)}

    conv = make_state_dict(dim, 1, heads, classes, 1, "tssa")
    state = {
        k.replace("to_patch_embedding", "patch_embed"): v for k, v in conv.items() if "patch_embedding" in k
    }
    state |= {"cls_token": normal(1, 1, dim), "pos_embeder.token_projection.bias": normal(dim)}
    state["pos_embeder.token_projection.weight"] = normal(dim, 64, 1, 1)
    for block in [f"blocks.{i}" for i in range(depth)] + [f"cls_attn_blocks.{i}" for i in range(2)]:
        state |= norm(f"{block}.norm1") | norm(f"{block}.norm2")
        state |= linear(f"{block}.mlp.fc1", 4 * dim, dim) | linear(f"{block}.mlp.fc2", dim, 4 * dim)
        state |= {f"{block}.gamma1": 1 + normal(dim), f"{block}.gamma2": 1 + normal(dim)}
        if block.startswith("cls"):
            state |= linear(f"{block}.attn.qkv", 3 * dim, dim) | linear(f"{block}.attn.proj", dim, dim)
        else:
            state |= linear(f"{block}.attn.qkv", dim, dim) | linear(f"{block}.attn.to_out.0", dim, dim)
            state[f"{block}.attn.temp"] = 1 + normal(heads, 1)
    return state | norm("norm") | linear("head", classes, dim)


def tost_logits(state: dict[str, Tensor], images: Tensor, heads: int) -> Tensor:
    """Classify images with the original ToST, straight."""
    dim = state["cls_token"].shape[-1]

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (dim,), state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def mlp(name: str, x: Tensor) -> Tensor:
        return linear(f"{name}.fc2", F.gelu(linear(f"{name}.fc1", x)))

    stem = {k.replace("patch_embed", "to_patch_embedding"): v for k, v in state.items()}
    x = _stem(stem, images, "tssa")
    b, n, _ = x.shape
    side = int(n**0.5)
    # Positions: sines and cosines of row and column, 32 channels each, through a 1×1 convolution.
    place = torch.arange(1, side + 1) / (side + 1e-6) * 2 * torch.pi
    angles = place[:, None] / 10000 ** (2 * (torch.arange(32) // 2) / 32)  # (side, 32)
    waves = torch.where(torch.arange(32) % 2 == 0, angles.sin(), angles.cos())
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    features = torch.cat([rows, columns], -1).reshape(n, 64)
    weight = state["pos_embeder.token_projection.weight"][:, :, 0, 0]
    x = x + features @ weight.T + state["pos_embeder.token_projection.bias"]
    depth = len({k.split(".")[1] for k in state if k.startswith("blocks.")})
    for name in (f"blocks.{i}" for i in range(depth)):
        w = linear(f"{name}.attn.qkv", norm(f"{name}.norm1", x)).reshape(b, n, heads, -1).transpose(1, 2)
        pi = ((w / w.norm(dim=2, keepdim=True)) ** 2).sum(-1) * state[f"{name}.attn.temp"]
        pi = pi.softmax(1)
        moments = (pi / (pi.sum(-1, keepdim=True) + 1e-8)).unsqueeze(2) @ w**2
        out = (-w * pi.unsqueeze(-1) / (1 + moments)).transpose(1, 2).reshape(b, n, dim)
        x = x + state[f"{name}.gamma1"] * linear(f"{name}.attn.to_out.0", out)
        x = x + state[f"{name}.gamma2"] * mlp(f"{name}.mlp", norm(f"{name}.norm2", x))
    x = torch.cat([state["cls_token"].expand(b, -1, -1), x], 1)
    for name in (f"cls_attn_blocks.{i}" for i in range(2)):
        normed = norm(f"{name}.norm1", x)
        q, k, v = linear(f"{name}.attn.qkv", normed).reshape(b, n + 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q[:, :, :1] @ k.mT * (dim // heads) ** -0.5).softmax(-1)
        cls = linear(f"{name}.attn.proj", (weights @ v).transpose(1, 2).reshape(b, 1, dim))
        x = norm(f"{name}.norm2", x + state[f"{name}.gamma1"] * torch.cat([cls, normed[:, 1:]], 1))
        update = state[f"{name}.gamma2"] * mlp(f"{name}.mlp", x[:, :1])
        x = x + torch.cat([update, x[:, 1:]], 1)
    return linear("head", norm("norm", x)[:, 0])
