"""Environment of the launcher's tests: a plain shell, outside of any job."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from torchft_x import env

OF_A_JOB = (
    env.TOKEN,
    env.TOKEN_FILE,
    env.LIGHTHOUSE,
    env.LIGHTHOUSE_AT,
    env.ADVERTISE_HOST,
    env.RUN_DIR,
    env.TORCHX_JOB_ID,
)
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@pytest.fixture(autouse=True)
def _plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_A_JOB, *DEVICES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port whose owner accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
