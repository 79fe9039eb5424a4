"""Share CUDA tensors between a process and its child without a copy, by CUDA IPC handles as JSON.

The owner records an event when it sends a tensor. The child's stream waits for that event before it touches the
memory. The way back needs no event: the child reports "done" only when its stream has finished.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

_CLASSES = {"T": torch.Tensor, "S": torch.storage.TypedStorage, "U": torch.UntypedStorage}
_NAMES = {kind: name for name, kind in _CLASSES.items()}


def export(tensor: Tensor) -> list[Any]:
    """Return `open_tensor`'s arguments in the child. The caller keeps the tensor alive until the child is done."""
    rebuild, args = reductions.reduce_tensor(tensor.detach())
    assert rebuild is reductions.rebuild_cuda_tensor, f"{tensor.device} is not CUDA"
    return [_to_json(arg) for arg in args]


def open_tensor(values: list[Any]) -> Tensor:
    return reductions.rebuild_cuda_tensor(*[_from_json(value) for value in values])


def record_event(device: torch.device) -> list[Any]:
    """Record an event after all work queued on the current stream. Return ``[device index, handle]`` and the event.

    The caller must keep the event until it is used.
    """
    with torch.cuda.device(device):
        event = torch.cuda.Event(interprocess=True)
        event.record()
        return [[device.index, event.ipc_handle().hex()], event]


def wait_event(values: list[Any]) -> Any:
    """Make the current stream wait for the parent's event. Return the event, to be kept until the stream passes it."""
    index, handle = values
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", index), bytes.fromhex(handle))
    torch.cuda.current_stream(index).wait_event(event)
    return event


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, tuple | list):  # torch.Size and strides
        return ["size", list(value)]
    return ["class", _NAMES[value]] if isinstance(value, type) else value


def _from_json(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, given = value
    if kind == "bytes":
        return bytes.fromhex(given)
    if kind == "dtype":
        return getattr(torch, given)
    return _CLASSES[given] if kind == "class" else torch.Size(given)
