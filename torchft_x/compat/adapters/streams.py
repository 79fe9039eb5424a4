"""The current stream, whatever the accelerator."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


def get_stream_context(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Make `stream` the current one for a block. Nothing without an accelerator, and for None."""
    if stream is None or not torch.accelerator.is_available():
        return contextlib.nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(stream.device).stream(stream)
    return context


def record_event() -> Any:
    """An event in the current stream; on CUDA one that another process may wait for."""
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
