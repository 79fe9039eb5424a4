"""Arguments of collectives: which tensors are read and written, and how options are pickled, for which torch has no code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch import Tensor
from torch._C import _distributed_c10d as c10d

_FIELDS = ("rootRank", "rootTensor", "reduceOp", "asyncOp", "timeout", "device_ids")  # sent fields of options
_SECOND = ("allgather", "alltoall", "reduce_scatter")  # only write their first argument and read the second


def written(op: str, args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that a collective writes."""
    return [] if op == "send" else _tensors_in(args[:1])


def read(op: str, args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors whose content a collective reads."""
    return [] if op == "recv" else _tensors_in(args[1:2] if op.startswith(_SECOND) else args[:1])


def replace(value: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """Return `value`, or a list with its elements, with ``new(each)`` in place of each object of this kind in it."""
    if isinstance(value, kind):
        return new(value)
    return [replace(each, kind, new) for each in value] if isinstance(value, list | tuple) else value


def _tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    replace(value, Tensor, found.append)
    return found


def _reduce(options: Any) -> tuple[Any, ...]:
    return _made, (type(options), {name: getattr(options, name) for name in _FIELDS if hasattr(options, name)})


def _made(kind: type, fields: dict[str, Any]) -> Any:
    options = kind()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


for _name, _kind in vars(c10d).items():
    if _name.endswith("Options") and not _name.startswith("_"):
        ForkingPickler.register(_kind, _reduce)
