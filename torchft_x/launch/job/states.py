"""States of a job, and of its replicas, with TorchX's names."""

from __future__ import annotations

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"
ALIVE = (PENDING, RUNNING)
OVER = (SUCCEEDED, FAILED, CANCELLED)
STATES = (*ALIVE, *OVER)
