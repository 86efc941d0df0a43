"""The decoders written a second time from their equations, for one image in float64, head by head.

Class tokens stand *after* the patches, as in the authors' code. Weights are taken from a state dict.
"""

import torch
from torch.nn import functional as F

from tests.truth import cbsa_columns


def norm(x, weights, name):
    """LayerNorm by its definition."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def back(heads, weights, name):
    """Projection back: the bases themselves, or a matrix of its own with a bias."""
    merged = torch.cat(heads, dim=1)
    if f"{name}.to_out.weight" in weights:
        return merged @ weights[f"{name}.to_out.weight"].T + weights[f"{name}.to_out.bias"]
    return merged @ weights[f"{name}.proj.weight"]


def cbsa(x, weights, name, grid, heads, representatives):
    """CBSA (eq. CBSA) of tokens x (h·w + classes, d); only the first h·w are pooled."""
    w = x @ weights[f"{name}.proj.weight"].T
    p = w.shape[1] // heads
    out = []
    for k in range(heads):
        u = w[:, k * p : (k + 1) * p]
        maps = u[: grid[0] * grid[1]].T.reshape(1, p, *grid)
        q = F.adaptive_avg_pool2d(maps, representatives).reshape(p, -1)
        steps = weights[f"{name}.step_rep"][k], weights[f"{name}.step_out"][k]
        out.append(cbsa_columns(u.T, q, *steps, p**-0.5, "softmax", 0.1).T)
    return back(out, weights, name)


def mssa(query, x, weights, name, heads):
    """κ·Σ_k U_k softmax(…) (eq. MSSA with one step and tied bases), from ``query`` to x."""
    u = weights[f"{name}.proj.weight"]
    p = u.shape[0] // heads
    out = []
    for k in range(heads):
        basis = u[k * p : (k + 1) * p]
        scores = (query @ basis.T) @ (x @ basis.T).T / p**0.5
        out.append(torch.softmax(scores, dim=1) @ (x @ basis.T))
    return weights[f"{name}.step_out"] * back(out, weights, name)


def mhsa(x, weights, name, heads):
    qkv = x @ weights[f"{name}.proj.weight"].T + weights[f"{name}.proj.bias"]
    q, k, v = qkv.chunk(3, dim=1)
    p = q.shape[1] // heads
    out = []
    for h in range(heads):
        cut = slice(h * p, (h + 1) * p)
        out.append(torch.softmax(q[:, cut] @ k[:, cut].T / p**0.5, dim=1) @ v[:, cut])
    return back(out, weights, name)


def masks(patches, classes, weights, grid):
    """Cosines, normalised over the classes: (classes, h, w)."""
    patches = patches / patches.norm(dim=1, keepdim=True)
    classes = classes / classes.norm(dim=1, keepdim=True)
    return norm(patches @ classes.T, weights, "mask_norm").T.reshape(-1, *grid)


def cbt(patches, weights, grid, *, depth, heads, representatives):
    x = torch.cat([patches, weights["class_tokens"][0]])
    for i in range(depth):
        normed = norm(x, weights, f"blocks.{i}.norm")
        x = x + cbsa(normed, weights, f"blocks.{i}.attn", grid, heads, representatives)
    x = norm(x, weights, "norm")
    return masks(x[: len(patches)], x[len(patches) :], weights, grid)


def depict(patches, weights, grid, *, depth, heads, cross_depth=0):
    classes = weights["class_tokens"][0]
    x = patches if cross_depth else torch.cat([patches, classes])
    for i in range(depth):
        normed = norm(x, weights, f"blocks.{i}.norm")
        x = x + mssa(normed, normed, weights, f"blocks.{i}.attn", heads)
    x = norm(x, weights, "norm")
    if not cross_depth:
        return masks(x[: len(patches)], x[len(patches) :], weights, grid)
    for i in range(cross_depth):
        keys = norm(x, weights, f"cross_blocks.{i}.norm")
        classes = classes + mssa(classes, keys, weights, f"cross_blocks.{i}.attn", heads)
    return masks(x, norm(classes, weights, "cross_norm"), weights, grid)


def mask_transformer(patches, weights, grid, *, depth, heads):
    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = torch.cat([linear(patches, "proj_in"), weights["class_tokens"][0]])
    for i in range(depth):
        x = x + mhsa(norm(x, weights, f"blocks.{i}.norm1"), weights, f"blocks.{i}.attn", heads)
        hidden = linear(norm(x, weights, f"blocks.{i}.norm2"), f"blocks.{i}.ff.fc1")
        x = x + linear(hidden * torch.special.ndtr(hidden), f"blocks.{i}.ff.fc2")  # GELU: x Φ(x)
    x = norm(x, weights, "norm")
    patches, classes = x[: len(patches)], x[len(patches) :]
    return masks(
        patches @ weights["proj_patches.weight"].T, classes @ weights["proj_classes.weight"].T, weights, grid
    )
