"""Collectives of a group with one member: at most they copy, and they never communicate."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import Work

from torchft_x.comm.work import DoneWork
from torchft_x.errors import CollectiveError


def alone(op: str, *args: Any) -> Work:
    """Carry out the collective `op` in a group of one, and return its completed handle.

    Raises `CollectiveError` for operations that make no sense in a group of one: ``send`` and ``recv``, and a
    reduction that scales its input.
    """
    if op in ("send", "recv"):
        raise CollectiveError(f"{op} needs another member, and this group has one.")
    if "reduce" in op and reduce_op_of(args[-1]) == dist.ReduceOp.PREMUL_SUM:
        raise CollectiveError(f"{op} with PREMUL_SUM is not offered; scale the tensor and use SUM.")
    if op == "barrier":
        return DoneWork([])
    if op == "allgather":
        _copy([output for row in args[0] for output in row], args[1])
    elif op == "reduce_scatter":
        _copy(args[0], [row[0] for row in args[1]])
    elif op == "alltoall_base":
        args[0].copy_(args[1])
        return DoneWork([args[0]])
    elif op.endswith("_tensor_coalesced"):
        _copy(args[0], args[1])
    return DoneWork(args[0])


def reduce_op_of(opts: Any) -> Any:
    """Return the reduce operation in `opts`, which may be options, the operation itself, or neither (the sum)."""
    if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        return opts
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _copy(outputs: list[Any], inputs: list[Any]) -> None:
    for output, given in zip(outputs, inputs, strict=True):
        output.copy_(given)
