"""A lighthouse whose lease is deleted, and its page for a reader that reads nothing: both take seconds."""

from __future__ import annotations

import socket
import time

import pytest

from tests.process.rpc.lighthouse.failover.test_standby import House, houses  # noqa: F401
from tests.unit.rpc.lighthouse.page.conftest import page  # noqa: F401
from tests.unit.rpc.lighthouse.page.served import Served
from tests.util import wait_for
from torchft_x.rpc.lighthouse.page import http as page_http


@pytest.mark.parametrize("whole", [True, False])
def test_a_lease_that_is_deleted_ends_all_lighthouses(houses: tuple[House, House], whole: bool) -> None:
    first, second = houses
    for path in (first.folder / "lease").iterdir():
        path.unlink()
    if whole:
        (first.folder / "lease").rmdir()
    wait_for(lambda: bool(first.lost), 20, "the first one to notice")
    assert "its entry in" in first.lost[0]
    wait_for(lambda: bool(second.refused), 20, "the second one to notice")
    assert "was deleted" in second.refused[0]


def test_who_does_not_read_is_closed(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_http, "PATIENCE", 0.2)
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(page.page_address)
        for _ in range(2000):  # more answers than the kernel holds
            try:
                s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            except OSError:
                return
            time.sleep(0.01)
    raise AssertionError("it is still served")
