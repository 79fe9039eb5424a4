"""Access to the shard that one rank holds of a DTensor. DTensor is imported only if a tensor is one."""

from __future__ import annotations

from typing import Any

import torch

from torchft_x.transfer.format.flatten import is_dtensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor on the same memory; for a DTensor it is this rank's shard."""
    with torch.no_grad():  # so that DTensor.to_local returns the shard itself, not a node of the graph
        data = tensor.to_local() if is_dtensor(tensor) else tensor
    return data.detach()


def offloaded(tensor: torch.Tensor) -> bool:
    """Return whether the shards are on another device than the mesh: on the host, by FSDP's `CPUOffloadPolicy`."""
    t: Any = tensor
    return is_dtensor(t) and t.device.type != t.device_mesh.device_type


def local_grad(p: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of this rank's part of `p`, without copying it.

    Autograd may leave the gradient of a DTensor in other placements than the parameter's (partial sums under tensor
    parallelism). The group's ranks then redistribute it together. FSDP has done so already.
    """
    grad = p.grad
    if grad is None or not is_dtensor(grad):
        return grad
    if is_dtensor(p) and grad.placements != p.placements:
        grad = grad.redistribute(p.device_mesh, p.placements)
    shard = local(grad)
    if offloaded(p) and shard.is_pinned():
        # Before torch 2.13 FSDP called the hooks during the copy from the device (pytorch#180666), which runs on this
        # stream.
        torch.accelerator.current_stream().synchronize()
    return shard


def like(p: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """Return `shard`, without a copy, as a tensor of the form of `p`: a DTensor with its placements if `p` is one."""
    if not is_dtensor(p):
        return shard
    from torch.distributed.tensor import DTensor

    q: Any = p.detach()
    if offloaded(q):  # `from_local` would copy it to the mesh's device
        _, form = q.__tensor_flatten__()
        parts = {"_local_tensor": shard, "device_mesh": q.device_mesh}
        return DTensor.__tensor_unflatten__(parts, form, q.shape, q.stride())
    return DTensor.from_local(
        shard, q.device_mesh, q.placements, run_check=False, shape=torch.Size(q.shape), stride=q.stride()
    )


def describe(tensor: torch.Tensor) -> str:
    """Describe the sharding of a tensor; empty if it is not sharded.

    Ranks of the same number get equal descriptions only if they hold the same piece of the same whole.
    """
    if not is_dtensor(tensor):
        return ""
    t: Any = tensor
    cut = ", ".join(repr(p) for p in t.placements)
    return f"{tuple(t.shape)} cut by {cut} over {tuple(t.device_mesh.shape)}, here {tuple(local(t).shape)}"


def shard_of(p: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `value`, which is whole or sharded like `p`. Nothing is sent."""
    if is_dtensor(value) or not is_dtensor(p):
        return local(value)
    from torch.distributed.tensor import distribute_tensor

    q: Any = p
    return local(distribute_tensor(value, q.device_mesh, q.placements, src_data_rank=None))
