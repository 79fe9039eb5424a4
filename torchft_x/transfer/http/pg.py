"""torchft's `PGTransport`, with its arguments, over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from torchft_x.durations import seconds
from torchft_x.transfer.http.transport import HTTPTransport

T = TypeVar("T")
log = logging.getLogger(__name__)


class PGTransport(HTTPTransport[T]):
    """`HTTPTransport` with the arguments of torchft's transport through a process group.

    torchft sends the live tensors through `pg` while the source's step waits. Here a copy is sent, into the receiver's
    tensors where they fit, and the source goes on.

    Args:
        pg: not used.
        timeout: seconds or a timedelta; the longest time of a whole transfer, unless the call gives another.
        device: not used.
        state_dict: returns the state to receive into, where `recv_checkpoint` isn't given one.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup | None,
        timeout: float | timedelta,
        device: torch.device | str,
        state_dict: Callable[[], T] | None = None,
    ) -> None:
        super().__init__(timeout)
        self._state_dict = state_dict
        log.warning(
            "PGTransport sends the state over HTTP, not through the process group; HTTPTransport does the same."
        )

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta | None = None,
        *,
        into: T | None = None,
        **more: Any,
    ) -> T:
        """Receive the state as `HTTPTransport.recv_checkpoint` does, by default within the constructor's timeout."""
        if into is None and self._state_dict is not None:
            into = self._state_dict()
        limit = self._timeout if timeout is None else seconds(timeout)
        return super().recv_checkpoint(src_rank, metadata, step, limit, into=into, **more)
