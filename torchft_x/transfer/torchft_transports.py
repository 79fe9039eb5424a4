"""Adapts transports written for torchft's interface, which identify a state by its step alone, and may serve it live."""

from __future__ import annotations

import inspect
import logging
from datetime import timedelta
from typing import Any, TypeVar

from torchft_x.durations import seconds
from torchft_x.transfer.transport import CheckpointTransport

T = TypeVar("T")
logger = logging.getLogger(__name__)


def adapted(transport: Any) -> CheckpointTransport[Any]:
    """Return `transport`, or an adapter that calls it as torchft does if it takes no ``committed_in``."""
    methods = (transport.send_checkpoint, transport.recv_checkpoint)
    return transport if all(_takes(method, "committed_in") for method in methods) else AdaptedTransport(transport)


def takes_mirrors(transport: CheckpointTransport[Any]) -> bool:
    """Return whether a transport copies a state from several sources at a time, and serves as one of them."""
    mirror = CheckpointTransport.mirror_checkpoint
    own = getattr(type(transport), "mirror_checkpoint", mirror) is not mirror
    return own and _takes(transport.recv_checkpoint, "mirrors")


def _takes(method: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


class AdaptedTransport(CheckpointTransport[T]):
    """Adapter that calls `inner` as torchft's Manager does: keywords, timedelta, `disallow_checkpoint` before changes.

    The loading code checks that a received state is the requested one: the state contains its own name.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._offers = False  # whether readers may be reading the live state

    def __repr__(self) -> str:
        return f"<adapted {self._inner!r}>"

    def metadata(self) -> str:
        return str(self._inner.metadata())

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: T, timeout: float | timedelta, *, committed_in: int = 0
    ) -> None:
        self._offers = True
        limit = timedelta(seconds=seconds(timeout))
        self._inner.send_checkpoint(dst_ranks=dst_ranks, step=step, state_dict=state_dict, timeout=limit)

    def recv_checkpoint(
        self,
        src_rank: int,
        metadata: str,
        step: int,
        timeout: float | timedelta,
        *,
        committed_in: int = 0,
        into: T | None = None,
    ) -> T:
        limit = timedelta(seconds=seconds(timeout))
        state: T = self._inner.recv_checkpoint(src_rank=src_rank, metadata=metadata, step=step, timeout=limit)
        return state

    def before_commit(self) -> None:
        """Withdraw the offer of the live state. The healers have finished or given up: they vote after their fetch."""
        if self._offers:
            try:
                self.disallow_checkpoint()
            except Exception as e:
                logger.warning("%r would not stop to offer its state, which changes now: %s", self._inner, e)

    def disallow_checkpoint(self) -> None:
        self._offers = False
        withdraw = getattr(self._inner, "disallow_checkpoint", None)  # optional in torchft's interface
        if withdraw is not None:
            withdraw()

    def shutdown(self, wait: bool = True) -> None:
        end = getattr(self._inner, "shutdown", None)
        if end is not None:
            end(wait=wait)
