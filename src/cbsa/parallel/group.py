"""The processes that hold one sequence together."""

from dataclasses import dataclass

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

_DIMENSION = "context"  # what a mesh of several dimensions calls it, unless it is named


@dataclass(frozen=True)
class ContextGroup:
    """This process among those that hold a sequence; they are numbered in the order of its tokens.

    Attributes:
        name: PyTorch's name of the process group.
        rank: number of this process in it.
        size: number of processes.
    """

    name: str
    rank: int
    size: int

    @classmethod
    def of(cls, mesh: DeviceMesh, dim: int | str | None = None) -> "ContextGroup":
        """The group of a dimension of a mesh; of a mesh of one dimension, that one.

        Args:
            mesh: the mesh.
            dim: name or index of the dimension. None stands for ``"context"`` if there are several.
        """
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(
                f"mesh must be a DeviceMesh, got {type(mesh).__name__}; "
                "torch.distributed.device_mesh.init_device_mesh makes one"
            )
        names = mesh.mesh_dim_names or ()
        if dim is None:
            dim = 0 if mesh.ndim == 1 else _DIMENSION
        known = dim in names if isinstance(dim, str) else 0 <= dim < mesh.ndim
        if not known:
            raise ValueError(
                f"dim={dim!r}: the mesh has {mesh.ndim} dimensions, named {list(names)}; "
                "say over which of them tokens are spread"
            )
        index = names.index(dim) if isinstance(dim, str) else dim
        group = mesh.get_group(index)
        return cls(group.group_name, mesh.get_local_rank(index), mesh.size(index))

    @classmethod
    def world(cls) -> "ContextGroup":
        """All processes."""
        group = distributed.group.WORLD
        assert group is not None, "there is no process group yet"
        return cls(group.group_name, distributed.get_rank(), distributed.get_world_size())
