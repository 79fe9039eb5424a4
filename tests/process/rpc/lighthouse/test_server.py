"""The lighthouse's ports: sessions, the peer's unary service, status, and what must not hurt it."""

from __future__ import annotations

import time

import pytest

from tests.unit.rpc.support import asking, lighthouse
from tests.util import scaled, wait_for
from torchft_x.errors import DeadlineError
from torchft_x.rpc.coordination import LighthouseClient


def test_the_unary_deadline_gives_the_reason() -> None:
    with lighthouse(min_replicas=2) as two:
        client = LighthouseClient(two.address(), scaled(5.0))
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="min_replicas"):
            client.quorum("a", timeout=scaled(1.0))
        assert 0.5 < time.monotonic() - begun < scaled(10.0)
        wait_for(lambda: not asking(two), what="the request to be forgotten")
