"""Encode the arguments of collectives as JSON, without their tensors. Pure: both ends of the pipe to a child use it.

::

    value: null | true | int | ["list", [value, ...]] | ["tensor", i] | ["op", "SUM"] | ["options", class, {field:
        value}]
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchft_x.errors import CollectiveError

_FIELDS = ("rootRank", "rootTensor", "reduceOp", "asyncOp", "timeout", "device_ids")  # sent fields of options
_OPTIONS = {
    name: getattr(torch._C._distributed_c10d, name)
    for name in (
        "AllgatherOptions",
        "AllreduceCoalescedOptions",
        "AllreduceOptions",
        "AllToAllOptions",
        "BarrierOptions",
        "BroadcastOptions",
        "ReduceScatterOptions",
    )
}
_SECOND = frozenset(  # collectives that only write their first argument and read the second
    {
        "allgather",
        "allgather_into_tensor_coalesced",
        "alltoall_base",
        "reduce_scatter",
        "reduce_scatter_tensor_coalesced",
    }
)


def written(op: str, args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that a collective writes."""
    return [] if op in ("send", "barrier") else tensors_in(args[0])


def read(op: str, args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors whose content a collective reads."""
    if op in ("recv", "barrier"):
        return []
    return tensors_in(args[1] if op in _SECOND else args[0])


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, in the order in which `pack` numbers them."""
    if isinstance(value, Tensor):
        return [value]
    return [t for each in value for t in tensors_in(each)] if isinstance(value, list | tuple) else []


def pack(op: str, args: Sequence[Any]) -> list[Any]:
    """Return the arguments as JSON. Raises `CollectiveError` for an argument that can't be encoded."""
    count = 0

    def node(value: Any) -> Any:
        nonlocal count
        if value is None or isinstance(value, int):
            return value
        if isinstance(value, Tensor):
            count += 1
            return ["tensor", count - 1]
        if isinstance(value, list | tuple):
            return ["list", [node(each) for each in value]]
        if isinstance(value, timedelta):
            return ["seconds", value.total_seconds()]
        if isinstance(value, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return ["op", _op_name(op, value)]
        name = type(value).__name__
        if name in _OPTIONS:
            return ["options", name, {f: node(getattr(value, f)) for f in _FIELDS if hasattr(value, f)}]
        raise CollectiveError(f"{op}: an argument of type {name} can't be passed to the child process.")

    return [node(arg) for arg in args]


def unpack(nodes: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Return the arguments from their JSON, with these tensors."""

    def value(node: Any) -> Any:
        if not isinstance(node, list):
            return node
        kind, *rest = node
        if kind == "tensor":
            return tensors[rest[0]]
        if kind == "list":
            return [value(each) for each in rest[0]]
        if kind == "seconds":
            return timedelta(seconds=rest[0])
        if kind == "op":
            return dist.ReduceOp(getattr(dist.ReduceOp.RedOpType, rest[0]))
        options = _OPTIONS[rest[0]]()
        for field, given in rest[1].items():
            setattr(options, field, value(given))
        return options

    return [value(node) for node in nodes]


def _op_name(op: str, value: Any) -> str:
    kind = value if isinstance(value, dist.ReduceOp.RedOpType) else value.op
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        raise CollectiveError(f"{op} with PREMUL_SUM is not offered; scale the tensor and use SUM.")
    return str(kind.name)
