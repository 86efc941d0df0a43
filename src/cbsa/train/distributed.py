"""The processes of a run: started by ``torchrun``, or one alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cbsa.parallel import context_parallel
from cbsa.parallel.sync_batch_norm import synchronise_batch_norm
from cbsa.train.config import RuntimeConfig


@dataclass(frozen=True)
class World:
    """This process among all of a run.

    Attributes:
        rank: its number.
        size: number of processes.
        device: where it computes.
        context: how many processes, of successive numbers, share their images.
    """

    rank: int
    size: int
    device: torch.device
    context: int = 1

    @property
    def data_rank(self) -> int:
        """Number of this process's share of the images."""
        return self.rank // self.context

    @property
    def data_size(self) -> int:
        """Into how many shares the images are divided."""
        return self.size // self.context

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def sum_over_data(self, values: Tensor) -> Tensor:
        """Sum over all shares of the images, of which several processes may have the same."""
        return self.sum(values if self.rank % self.context == 0 else values.zero_())

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; over the CPU, so that a GPU is not waited for."""
        return bool(self.sum(torch.tensor(int(flag))).item())

    def share(self, value: Any) -> Any:
        """What the main process has, in every process."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process has, in order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device to train on; ``"auto"`` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"runtime.device={name!r}: expected auto, cpu, cuda or cuda:INDEX") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"runtime.device={name!r}: PyTorch sees no GPU; use runtime.device=cpu")
        index = local_rank if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"runtime.device: GPU {index} is asked for, but there are {torch.cuda.device_count()}; "
                "start as many processes as there are GPUs"
            )
        return torch.device("cuda", index)
    return device


@contextmanager
def join_world(runtime: RuntimeConfig) -> Iterator[World]:
    """Join the other processes if ``torchrun`` started several, and leave them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = choose_device(runtime.device, int(os.environ.get("LOCAL_RANK", "0")))
    if size % runtime.context:
        raise ValueError(
            f"runtime.context={runtime.context} processes cannot share images where there are {size}; start "
            f"a multiple of it: torchrun --nproc-per-node={runtime.context} …"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    owned = not distributed.is_initialized()
    if owned:
        _meet("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(distributed.get_rank(), distributed.get_world_size(), device, runtime.context)
    finally:
        if owned:
            distributed.destroy_process_group()


def _meet(backend: str) -> None:
    """Form the group of processes that ``torchrun`` started.

    When it starts them again after one died, the store through which they find each other may be the old one,
    with the addresses of the dead: each attempt gets a corner of its own.
    """
    store, rank, size = next(rendezvous("env://"))  # type: ignore[no-untyped-call]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"attempt-{attempt}", store)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


def parallelise(model: nn.Module, runtime: RuntimeConfig, world: World) -> nn.Module:
    """Prepare a model for several processes; with one, it is returned as it is.

    If processes share images, the model takes its rows of them; gradients are means over all processes in
    any case. DDP returns a wrapper. FSDP2 shards the parameters of each block in place; in half precision,
    parameters are gathered in it and gradients reduced in float32.
    """
    if world.size == 1:
        return model
    if world.context > 1:
        shape, names = (world.data_size, world.context), ("data", "context")
        grid = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
        model = context_parallel(model, grid, whole_images=True)
    if runtime.sync_batch_norm:
        model = synchronise_batch_norm(model, world.device)
    if runtime.parallel == "ddp":
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)
    mesh = init_device_mesh(world.device.type, (world.size,))
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(runtime.precision)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, without DDP's wrapper."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def local_part(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, sharing its memory; any other tensor as it is."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()  # type: ignore[no-untyped-call]
    return tensor.detach()
