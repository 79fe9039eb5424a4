"""What one rank holds of a tensor that is sharded within its group. DTensor is imported only where there is one."""

from __future__ import annotations

from typing import Any

import torch

from torchft_x.transfer.format.flatten import is_dtensor

__all__ = ["describe", "is_dtensor", "like", "local", "local_grad", "offloaded", "shard_of"]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory behind it: of a DTensor this rank's shard. A parameter becomes a plain tensor."""
    with torch.no_grad():  # DTensor.to_local is the shard itself then, not a step of the graph
        data = tensor.to_local() if is_dtensor(tensor) else tensor
    return data.detach()


def offloaded(tensor: torch.Tensor) -> bool:
    """Whether its shards lie elsewhere than its mesh computes: on the host, by FSDP's `CPUOffloadPolicy`."""
    t: Any = tensor
    return is_dtensor(t) and t.device.type != t.device_mesh.device_type


def local_grad(p: torch.Tensor) -> torch.Tensor | None:
    """The gradient of what this rank holds of `p`, not copied, and there.

    Autograd may leave the gradient of a DTensor in other placements than the parameter's (partial sums under tensor
    parallelism); then the group's ranks bring it there together. FSDP has done so already.
    """
    grad = p.grad
    if grad is None or not is_dtensor(grad):
        return grad
    if is_dtensor(p) and grad.placements != p.placements:
        grad = grad.redistribute(p.device_mesh, p.placements)
    shard = local(grad)
    if offloaded(p) and shard.is_pinned():
        # Before torch 2.13 FSDP called the hooks while the copy from the device was under way (pytorch#180666). We are on
        # the stream of that copy.
        torch.accelerator.current_stream().synchronize()
    return shard


def like(p: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """`shard` as a tensor of the form of `p`: a DTensor with its placements if it is one. It is this very memory."""
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
    """How it is cut, in words that differ if two ranks of one number hold different pieces of the same whole. Empty: it
    is whole."""
    if not is_dtensor(tensor):
        return ""
    t: Any = tensor
    cut = ", ".join(repr(p) for p in t.placements)
    return f"{tuple(t.shape)} cut by {cut} over {tuple(t.device_mesh.shape)}, here {tuple(local(t).shape)}"


def shard_of(p: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What this rank holds of `value`, which is whole, or cut as `p` is. Nothing is sent."""
    if is_dtensor(value) or not is_dtensor(p):
        return local(value)
    from torch.distributed.tensor import distribute_tensor

    q: Any = p
    return local(distribute_tensor(value, q.device_mesh, q.placements, src_data_rank=None))
