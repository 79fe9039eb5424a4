"""A lighthouse whose lease is deleted, and its page for a reader that reads nothing: both take seconds."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import pytest

from tests.process.rpc.lighthouse.failover.test_standby import House, houses  # noqa: F401
from tests.unit.rpc.lighthouse.page.conftest import page  # noqa: F401
from tests.unit.rpc.lighthouse.page.served import Served
from tests.util import wait_for
from torchft_x.rpc.lighthouse.page import http as page_http


def test_a_lease_that_is_deleted_is_made_again_and_the_next_one_goes_on_with_the_journal(
    houses: tuple[House, House],
) -> None:
    first, second = houses
    shutil.rmtree(first.folder / "lease")
    wait_for(lambda: bool(first.lost), 20, "the first one to notice")
    assert "its entry in" in first.lost[0]
    second.serve()
    assert second.held.lease.entry.epoch == 2
    assert Path(second.held.journal.path).name == "journal.2"


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
