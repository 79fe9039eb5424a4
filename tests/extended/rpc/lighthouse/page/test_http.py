"""Connections: what strangers may send, and what becomes of those that send nothing. Real sockets."""

from __future__ import annotations

import socket
import time

import pytest

from tests.unit.rpc.lighthouse.page.served import Served
from tests.unit.rpc.lighthouse.page.test_http import page  # noqa: F401
from torchft_x.rpc.lighthouse.page import http as page_http


def test_who_does_not_read_is_closed(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_http, "SEND_TIMEOUT", 0.2)
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(page.place)
        for _ in range(2000):  # more answers than the kernel holds
            try:
                s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            except OSError:
                return
            time.sleep(0.01)
    raise AssertionError("it is still served")
