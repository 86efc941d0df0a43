"""Models of which several processes run one image together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from cbsa._checks import check_int
from cbsa.layers import Attention, ConvStem
from cbsa.models.transformer import Transformer
from cbsa.ops import resample_tokens
from cbsa.ops.precision import accumulation_dtype
from cbsa.parallel.collectives import sum_over_processes
from cbsa.parallel.convert import as_class
from cbsa.parallel.group import ContextGroup
from cbsa.parallel.layers import shard_attention
from cbsa.parallel.shard import Shard, check_same, check_same_dtypes, describe, dtypes, shard_of, split
from cbsa.parallel.stem import ShardedConvStem
from cbsa.parallel.sync_batch_norm import synchronise_batch_norm


def context_parallel(
    model: nn.Module, mesh: DeviceMesh, dim: int | str | None = None, *, whole_images: bool = False
) -> "ContextParallelTransformer":
    """The same model for images whose rows are spread over the processes of a dimension of a mesh.

    Each process gives it its rows of the images (:func:`own_rows`), from top to bottom in the order of the
    processes. Every process but the last has a multiple of ``patch_size`` rows; their numbers may differ.
    Logits come out the same in all of them; tokens and maps are those of each one's rows, CLS in all.

    Gradients: each process computes the loss and calls ``backward``, and the gradient of a parameter is the
    *mean* over the processes, which DDP and FSDP2 take. Wrap what is returned in one of them, over all
    processes of the mesh::

        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "context"))
        parallel = context_parallel(model, mesh)  # the dimension called "context"
        trained = DistributedDataParallel(parallel)  # all 8: means over data and context

    Parameters, buffers and their names are those of ``model``, which shares them; so are checkpoints.
    BatchNorm takes its statistics over the processes of the dimension.

    Args:
        model: a :class:`cbsa.models.Transformer`, already on its device, all of whose attentions are linear
            in the number of tokens: CBT, ToST and Agent twins, linear attention.
        mesh: the processes.
        dim: name or index of the mesh's dimension to spread rows over; by default the only one, or
            ``"context"``.
        whole_images: whether every process gives the model whole images, of which it takes its own rows, as
            even as possible. For images that one process can hold; the results are the same.

    Raises:
        ValueError: a layer compares every token with every token (MSSA, MHSA).
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"model must be a cbsa.models.Transformer, got {type(model).__name__}")
    if isinstance(model, ContextParallelTransformer):
        raise ValueError(
            "model is context-parallel already: give context_parallel the model of one process, which shares "
            "its parameters"
        )
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise ValueError(
            "model is compiled, for the images of one process: call context_parallel first, and "
            "compile_blocks on what it returns"
        )
    group = ContextGroup.of(mesh, dim)
    new = as_class(model, ContextParallelTransformer)
    for name, child in model.named_children():
        new._modules[name] = _convert(child, group, name)
    new.group, new.whole_images = group, whole_images
    device = model.pos_embed.device
    return synchronise_batch_norm(new, device, group)  # type: ignore[return-value]


def own_rows(
    images: Tensor, mesh: DeviceMesh, dim: int | str | None = None, *, patch_size: int = 16
) -> Tensor:
    """The rows of whole images (B, C, height, width) that this process gives to a context-parallel model.

    Rows of patches are divided as evenly as possible.
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, got {type(images).__name__}")
    if images.dim() != 4:
        raise ValueError(f"images must have shape (B, C, height, width), got {tuple(images.shape)}")
    return _own_rows(images, check_int("patch_size", patch_size), ContextGroup.of(mesh, dim))


def _own_rows(images: Tensor, patch_size: int, group: ContextGroup) -> Tensor:
    rows = split(-(-images.shape[2] // patch_size), group.size)
    start = sum(rows[: group.rank]) * patch_size
    return images[:, :, start : start + rows[group.rank] * patch_size]


def _convert(module: nn.Module, group: ContextGroup, name: str) -> nn.Module:
    """A copy of a module that shares its parameters, with sharded layers in place of those that need it."""
    if isinstance(module, Attention):
        return shard_attention(module, group, name)
    if isinstance(module, ConvStem):
        stem = as_class(module, ShardedConvStem)
        stem.group = group
        new: nn.Module = stem
    else:
        new = as_class(module, type(module))
    for child, submodule in module.named_children():
        new._modules[child] = _convert(submodule, group, f"{name}.{child}")
    return new


class ContextParallelTransformer(Transformer):
    """What :func:`context_parallel` returns: a transformer on some rows of an image."""

    group: ContextGroup
    whole_images: bool

    def _embed(self, images: Tensor) -> tuple[Tensor, Any]:
        """Tokens (B, 1 + h·w, dim) of this process's rows of the images, and their place among all."""
        shard = self._agree(images)
        if self.whole_images:
            images = _own_rows(images, self.patch_size, self.group)
        return self._sequence(self._maps(images, shard), shard), shard  # type: ignore[arg-type]

    def _in_tiles(self, images: Tensor, rows: int) -> Tensor:
        """Map of this process's patches, so many rows of them at a time."""
        stem = self.patch_embed
        assert isinstance(stem, ShardedConvStem)
        return stem.in_tiles(images, rows)

    def _share(self, grid: Any) -> tuple[int, int]:
        """The part of the grid that a process has on average: what it decides, it decides alike in all."""
        return -(-grid.total // self.group.size), grid.sizes[1]

    def _agree(self, images: Tensor) -> Shard:
        """How the rows of all processes lie; raises in every process if they do not fit together."""
        described = self._describe(images)
        check_same(described, *self._modes(), why="0 stands for False; give all of them the same")
        check_same(described, "batch size", "number of channels", "width")
        check_same_dtypes(described)
        p, width = self.patch_size, described[0]["width"]
        heights = [process["height"] for process in described]
        if self.whole_images:
            check_same(
                described, "height", why="with whole_images=True each process gives the same, whole images"
            )
            whole = heights[0]
            rows = split(-(-whole // p), self.group.size)
        else:
            if min(heights) < 1 or any(h % p for h in heights[:-1]):
                raise ValueError(
                    f"the processes of the context dimension have {heights} rows of pixels: each needs some, "
                    f"and all but the last a multiple of patch_size={p}. Give the mesh at most as many "
                    "processes as the image has rows of patches, and divide it with own_rows"
                )
            whole = sum(heights)
            rows = [-(-h // p) for h in heights]
        if whole < p or width < p:
            raise ValueError(f"images of {whole}×{width} px are smaller than a patch of {p} px")
        return shard_of(rows, (rows[self.group.rank], -(-width // p)), self.group)

    def _describe(self, images: object) -> list[dict[str, int]]:
        """What images each process gives; raises in every process if some are no images at all."""
        given = images if isinstance(images, Tensor) else self.pos_embed
        dimensions = given.dim() if given is images else -1
        shape = given.shape if dimensions == 4 else (-1, -1, -1, -1)
        facts = {"dimensions": dimensions, **self._modes()}
        facts |= dict(zip(("batch size", "number of channels", "height", "width"), shape, strict=True))
        facts |= dtypes(given, self.pos_embed)
        described = describe(facts, self.group, self.pos_embed.device)
        for rank, process in enumerate(described):
            if process["dimensions"] != 4:
                none = process["dimensions"] < 0
                what = "what is no tensor" if none else f"a tensor of {process['dimensions']} dimensions"
                raise (TypeError if none else ValueError)(
                    f"process {rank} of {self.group.size} gives {what} as images: they must have shape "
                    f"(B, {self.patch_embed.in_chans}, rows, width)"
                )
        return described

    def _modes(self) -> dict[str, int]:
        """What decides which collectives a process calls: one in another mode would wait for them forever."""
        recomputes = self.grad_checkpointing
        return {
            "whole_images": int(self.whole_images),
            "training": int(self.training),
            "enabled gradients": int(torch.is_grad_enabled()),
            "grad_checkpointing": -1 if recomputes is None else int(recomputes),
        }

    def _positions(self, grid: Any) -> Tensor:
        """Position embedding (1, 1 + h·w, dim) of this process's tokens; others are not computed."""
        if not isinstance(grid, Shard):
            return super()._positions(grid)
        prefix, patches = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        (h, w), start = grid.sizes, grid.start
        if grid.whole == self.grid:
            own = patches[:, start * w : (start + h) * w]
        else:
            own = resample_tokens(patches, self.grid, grid.whole, rows=(start, start + h))
        return torch.cat([prefix, own], dim=1)

    def _mean_of_patches(self, x: Tensor) -> Tensor:
        """Mean (B, dim) of the patches of all processes."""
        patches = x[:, self.num_prefix_tokens :].to(accumulation_dtype(x.dtype))
        count = patches.new_full((x.shape[0], 1), patches.shape[1])
        sums = sum_over_processes(torch.cat([patches.sum(1), count], 1), self.group)
        return (sums[:, :-1] / sums[:, -1:]).to(x.dtype)

    def _to_map(self, patches: Tensor, grid: Any) -> Tensor:
        """Map (B, dim, h, w) of this process's patches (B, h·w, dim)."""
        return super()._to_map(patches, grid.sizes)

    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Resampling positions for good is left to the model of one process, which has them all."""
        raise NotImplementedError("call set_input_size before context_parallel")
