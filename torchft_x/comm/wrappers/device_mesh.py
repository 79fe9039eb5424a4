"""Device mesh with the replica groups as one dimension, for FSDP2's hybrid sharding and other users of meshes.

The mesh is torch's own. It covers this replica group's ranks. The replicate dimension has length 1 in it, because the
number of groups changes and a mesh can't; the process group of that dimension is a `ManagedProcessGroup`. Reductions
over that dimension go through the Manager, and the group's `size` is the current number of participants.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchft_x.comm.wrappers.process_groups import ManagedProcessGroup
from torchft_x.errors import ConfigError


def ft_init_device_mesh(
    *,
    device_type: str,
    mesh_shape: tuple[int, ...],
    mesh_dim_names: tuple[str, ...],
    replicate_dim: int,
    manager: Any,
) -> DeviceMesh:
    """Return a mesh in which dimension `replicate_dim` stands for the replica groups that `manager` joins.

    Args:
        device_type: as in ``torch.distributed.init_device_mesh``.
        mesh_shape: the other dimensions multiply to the number of ranks in this group. The value at `replicate_dim`
            is not used, since the number of groups changes.
        mesh_dim_names: a name for each dimension.
        replicate_dim: index of the dimension that stands for the groups.
        manager: a `Manager`.

    ``mesh.get_group(name).size()`` of the replicate dimension returns the number of participants; ``mesh.size()``
    counts this group's ranks. Needs an initialised default process group over this replica group. Raises
    `ConfigError` if the shape doesn't fit it. Name and signature are torchft's.
    """
    _check(mesh_shape, mesh_dim_names, replicate_dim)
    inner_shape = mesh_shape[:replicate_dim] + mesh_shape[replicate_dim + 1 :]
    inner_names = mesh_dim_names[:replicate_dim] + mesh_dim_names[replicate_dim + 1 :]
    replicas = ManagedProcessGroup(manager)
    replicas.register(mesh_dim_names[replicate_dim])
    if not inner_shape:
        return DeviceMesh.from_group(replicas, device_type, mesh_dim_names=mesh_dim_names)
    inner = init_device_mesh(device_type, inner_shape, mesh_dim_names=inner_names)
    groups: list[dist.ProcessGroup] = [inner.get_group(name) for name in inner_names]
    groups.insert(replicate_dim, replicas)
    ranks: torch.Tensor = inner.mesh.unsqueeze(replicate_dim)
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=mesh_dim_names)


def _check(shape: tuple[int, ...], names: tuple[str, ...], replicate_dim: int) -> None:
    if not dist.is_initialized():
        raise ConfigError(
            "ft_init_device_mesh needs this group's default process group; call init_process_group first."
        )
    if len(shape) != len(names) or not 0 <= replicate_dim < len(shape):
        raise ConfigError(
            f"mesh_shape {shape} and mesh_dim_names {names} must be equally long, and replicate_dim={replicate_dim} an "
            "index into them."
        )
    ranks = 1
    for dim, size in enumerate(shape):
        ranks *= 1 if dim == replicate_dim else size
    if ranks != dist.get_world_size():
        raise ConfigError(
            f"mesh_shape {shape} without dimension {replicate_dim} ({names[replicate_dim]}) has {ranks} ranks, this "
            f"replica group {dist.get_world_size()}."
        )
