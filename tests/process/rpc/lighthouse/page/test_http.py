"""Connections: what strangers may send, and what becomes of those that send nothing. Real sockets."""

from __future__ import annotations

import contextlib
import http.client
import time

from tests.unit.rpc.lighthouse.page.served import Served
from tests.unit.rpc.lighthouse.page.test_http import page  # noqa: F401
from tests.util import scaled
from torchft_x.rpc.lighthouse.page import http as page_http


def test_many_requests_take_their_time_and_all_are_answered(page: Served) -> None:
    began, more = time.monotonic(), 20
    connection = http.client.HTTPConnection(*page.place, timeout=scaled(20))
    with contextlib.closing(connection):
        for _ in range(page_http.BURST + more):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
    assert time.monotonic() - began > 0.9 * more / page_http.PER_SECOND
