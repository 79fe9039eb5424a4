"""Functions on the current stream of any accelerator."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


def get_stream_context(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Return a context that makes `stream` the current one. It does nothing for None, or without an accelerator."""
    if stream is None or not torch.accelerator.is_available():
        return contextlib.nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(stream.device).stream(stream)
    return context


def record_event() -> Any:
    """Record an event in the current stream and return it; on CUDA another process may wait for it.

    Raises RuntimeError without an accelerator.
    """
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        raise RuntimeError("record_event needs an accelerator, and this process sees none.")
    module = torch.get_device_module(kind)
    event = module.Event(interprocess=True) if kind.type == "cuda" else module.Event()
    event.record(module.current_stream())
    return event


def synchronize() -> None:
    """Wait for the current stream of the accelerator, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.current_stream().synchronize()
