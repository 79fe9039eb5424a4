"""The peer's names, arguments, defaults and errors."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.unit.rpc.support import lighthouse
from tests.unit.rpc.test_coordination import (
    SECOND,
    manager,
)
from tests.util import clock
from torchft_x.rpc.coordination import (
    LighthouseClient,
    ManagerClient,
    QuorumResult,
)


def test_deadlines_are_timeout_errors_and_the_rest_runtime_errors() -> None:
    with lighthouse(2) as lh:
        server = manager("g0:x", lh.address())
        client = ManagerClient(server.address(), SECOND)
        with pytest.raises(TimeoutError, match="No quorum in time"):
            quorum(client, timeout=timedelta(seconds=clock(1.0)))
        with lighthouse(2) as other, pytest.raises(TimeoutError, match="min_replicas"):
            LighthouseClient(other.address(), SECOND).quorum("a", timeout=clock(0.5))
        with pytest.raises(RuntimeError, match="Rank 9"):
            client._checkpoint_metadata(9, SECOND)
        server.shutdown()
        with pytest.raises(RuntimeError):
            quorum(client, timeout=SECOND)
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
        ManagerClient("http://127.0.0.1:9", timedelta(milliseconds=200))
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
        LighthouseClient("http://127.0.0.1:9", timedelta(milliseconds=200))


def quorum(client: ManagerClient, timeout: timedelta) -> QuorumResult:
    return client._quorum(group_rank=0, step=0, checkpoint_metadata="", shrink_only=False, timeout=timeout)
