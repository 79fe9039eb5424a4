"""torchft's two transports: ours, with torchft's meaning of a timeout of zero."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from torchft_x.durations import Seconds
from torchft_x.errors import TransferError
from torchft_x.transfer.http.transport import HTTPTransport as OurHTTPTransport
from torchft_x.transfer.http.transport import PGTransport as OurPGTransport

T = TypeVar("T")

UNLIMITED = 24 * 3600.0  # seconds


def _is_zero(timeout: Seconds | None) -> bool:
    return timeout is not None and (
        timeout == timedelta(0) if isinstance(timeout, timedelta) else float(timeout) == 0.0
    )


class HTTPTransport(OurHTTPTransport[T]):
    """`torchft_x.HTTPTransport` for which a timeout of zero means not to wait for a state at all."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: Seconds, **ours: Any) -> T:
        if _is_zero(timeout):
            raise TransferError(f"The state of step {step} of replica rank {src_rank} timed out after 0 s.")
        return super().recv_checkpoint(src_rank, metadata, step, timeout, **ours)


class PGTransport(OurPGTransport[T]):
    """`torchft_x.PGTransport` for which a timeout of zero means no limit, as in torch's ``wait``."""

    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: Seconds | None = None, **ours: Any
    ) -> T:
        return super().recv_checkpoint(src_rank, metadata, step, UNLIMITED if _is_zero(timeout) else timeout, **ours)
