"""States of a job, and of its replicas, with TorchX's names."""

from __future__ import annotations

from torchft_x.errors import TorchftXError

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"
ALIVE = (PENDING, RUNNING)
OVER = (SUCCEEDED, FAILED, CANCELLED)
STATES = (*ALIVE, *OVER)
HEALTH_FAILED = "the health command"
"""First words of the reason for which a group is given up because its host failed `--health`."""


class UnreadableError(TorchftXError, ValueError):
    """Error: the file with a job's state can't be read. `missing` is whether it does not exist."""

    def __init__(self, sentence: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing
