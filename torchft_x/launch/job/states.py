"""States of a job, and of its replicas, with TorchX's names."""

from __future__ import annotations

from torchft_x.errors import TorchftXError

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"
ALIVE = (PENDING, RUNNING)
OVER = (SUCCEEDED, FAILED, CANCELLED)
STATES = (*ALIVE, *OVER)


class UnreadableError(TorchftXError, ValueError):
    """Error: the file with a job's state can't be read. `missing` is whether it does not exist."""

    def __init__(self, sentence: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing
