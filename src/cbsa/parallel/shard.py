"""Which part of a grid of tokens lies in this process, and the agreement of all processes about it."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbsa.ops.precision import accumulation_dtype, autocast_dtype
from cbsa.ops.sums import TokenSums
from cbsa.parallel.collectives import gather, sum_over_processes
from cbsa.parallel.group import ContextGroup

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_AXES = 8  # that a grid may have: processes exchange as many numbers whatever their grids are


class Shard(NamedTuple):
    """Slices of a grid along its first axis: rows of an image, frames of a video, a stretch of a sequence.

    Attributes:
        sizes: the grid that lies here.
        start: how many slices lie in the processes before.
        total: how many there are in all.
    """

    sizes: tuple[int, ...]
    start: int
    total: int

    @property
    def whole(self) -> tuple[int, ...]:
        """The grid of all tokens."""
        return (self.total, *self.sizes[1:])

    def check(self, tokens: int) -> None:
        """Check that so many patch tokens can lie here."""
        if math.prod(self.sizes) != tokens or not 0 <= self.start <= self.total - self.sizes[0]:
            raise ValueError(
                f"{self} does not describe the {tokens} patch tokens of this process: its sizes are the grid "
                "of these, start and total count slices along the first axis"
            )


class ShardSums(TokenSums):
    """Sums over tokens that are spread over the processes of a group; prefix tokens count in the first.

    Args:
        group: the processes.
        num_prefix_tokens: tokens before the patches, of which every process has a copy.
        shard: the patches of this process.
    """

    def __init__(self, group: ContextGroup, num_prefix_tokens: int, shard: Shard) -> None:
        self.group = group
        self.copies = num_prefix_tokens if group.rank > 0 else 0
        self.tokens = num_prefix_tokens + math.prod(shard.whole)

    def counted(self, x: Tensor) -> Tensor:
        """Tokens of x (..., N, d) without copies of prefix tokens that another process counts."""
        return x[..., self.copies :, :]

    def total(self, x: Tensor) -> Tensor:
        """Sum over processes, in float32 or wider."""
        return sum_over_processes(x.to(accumulation_dtype(x.dtype)), self.group).to(x.dtype)

    def count(self, n: int) -> int:
        """Number of all tokens."""
        return self.tokens


def split(rows: int, parts: int) -> list[int]:
    """Sizes of the parts that ``rows`` are divided into, as even as possible, the longer ones first."""
    if parts > rows:
        raise ValueError(
            f"{rows} rows of tokens cannot be divided among {parts} processes: each needs one; make the "
            "context dimension of the mesh smaller, or the image larger"
        )
    return [rows // parts + (part < rows % parts) for part in range(parts)]


def agree_on_tokens(
    x: Tensor, sizes: Sequence[int], num_prefix_tokens: int, mask: Tensor | None, group: ContextGroup
) -> Shard:
    """The shard of tokens x (B, N, dim) on a grid; raises in every process if they do not fit together."""
    if len(sizes) > _AXES:
        raise ValueError(
            f"grid={tuple(sizes)} has {len(sizes)} axes: tokens can be spread on at most {_AXES}"
        )
    padded = [*sizes, *[0] * (_AXES - len(sizes))]
    facts = {
        "rank of grid": len(sizes),
        **{f"grid[{axis}]": size for axis, size in enumerate(padded)},
        "tokens": x.shape[1] - num_prefix_tokens,
        "batch size": x.shape[0],
        "mask": int(mask is not None),
        **dtypes(x),
    }
    described = describe(facts, group, x.device)
    check_same(described, "rank of grid")
    for rank, process in enumerate(described):
        grid = [process[f"grid[{axis}]"] for axis in range(len(sizes))]
        if process["tokens"] != math.prod(grid) or process["tokens"] < 1:
            raise ValueError(
                f"process {rank} of {group.size} has {process['tokens']} patch tokens and "
                f"grid={tuple(grid)}: each needs at least one, and the grid of those that it has"
            )
    check_same(described, "batch size", *(f"grid[{axis}]" for axis in range(1, len(sizes))))
    check_same(described, "mask", why="give one to all of them or to none")
    check_same_dtypes(described)
    return shard_of([process["grid[0]"] for process in described], sizes, group)


def shard_of(rows: Sequence[int], sizes: Sequence[int], group: ContextGroup) -> Shard:
    """The shard of this process, with the rows of every process and the grid of this one."""
    return Shard(tuple(sizes), sum(rows[: group.rank]), sum(rows))


def dtypes(x: Tensor, parameter: Tensor | None = None) -> dict[str, int]:
    """Numbers for the dtypes a process computes in, −1 for none."""
    found = {"dtype": x.dtype, "autocast dtype": autocast_dtype(x.device)}
    if parameter is not None:
        found["dtype of the parameters"] = parameter.dtype
    return {name: _DTYPES.index(dtype) if dtype in _DTYPES else -1 for name, dtype in found.items()}


def describe(facts: Mapping[str, int], group: ContextGroup, device: torch.device) -> list[dict[str, int]]:
    """The facts of every process, which all name the same ones: a few bytes, whatever the tokens."""
    table = gather(torch.tensor(list(facts.values()), device=device), group).tolist()
    return [dict(zip(facts, row, strict=True)) for row in table]


def check_same(described: Sequence[Mapping[str, int]], *names: str, why: str = "") -> None:
    """Check that a fact is the same in all processes."""
    for name in names:
        values = [process[name] for process in described]
        if len(set(values)) > 1:
            raise ValueError(
                f"{name} must be the same in all processes that share a sequence, got {values} "
                f"by process{'; ' if why else ''}{why}"
            )


def check_same_dtypes(described: Sequence[Mapping[str, int]]) -> None:
    """Check that all processes compute in the same dtypes."""
    for name in (name for name in described[0] if "dtype" in name):
        values = [process[name] for process in described]
        if len(set(values)) > 1:
            shown = [str(_DTYPES[value]) if value >= 0 else "none" for value in values]
            raise TypeError(
                f"{name} must be the same in all processes that share a sequence, got {shown} by process; "
                "convert tokens and model to one dtype everywhere"
            )
