"""Connections: what strangers may send, and what becomes of those that send nothing. Real sockets."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time

import pytest

from tests.unit.rpc.lighthouse.page.served import Served, served
from tests.util import scaled, wait_for
from torchft_x.rpc.lighthouse.page import http as page_http


def said(page: Served, data: bytes, seconds: float = 10.0) -> bytes:
    """All that is answered to these bytes until the connection is closed."""
    with socket.create_connection(page.page_address, timeout=scaled(seconds)) as s:
        s.sendall(data)
        out = b""
        with contextlib.suppress(ConnectionResetError):
            while part := s.recv(65536):
                out += part
        return out


def test_one_connection_for_many_requests(page: Served) -> None:
    connection = http.client.HTTPConnection(*page.page_address, timeout=scaled(10))
    with contextlib.closing(connection):
        for path in ("/healthz", "/status.json", "/healthz"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
        assert connection.sock is not None


def test_head_has_no_body(page: Served) -> None:
    answer = page.ask("/healthz", "HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "3")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # without a Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n", b"431"),
        (b"POST /kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n" + b"a" * 9000, b"413"),
        (b"POST /kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"421"),  # without a Host
    ],
)
def test_what_is_no_request_is_answered_and_closed(page: Served, data: bytes, status: bytes) -> None:
    assert said(page, data).split(b"\r\n")[0][:12] == b"HTTP/1.1 " + status


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4",
        b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding : chunked",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5\r\ncontent-length: 0",
        b"Content-Length: 5, 5",
        b"Content-Length : 5",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_request_ends_where_a_proxy_sees_its_end(page: Served, framing: bytes, version: bytes) -> None:
    """T2: both lengths were accepted; a proxy that believes the other one can be made to pass a second request on unseen."""
    hidden = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = b"POST /kill HTTP/" + version + b"\r\nHost: localhost\r\n" + framing + b"\r\n\r\n0\r\n\r\n" + hidden
    answer = said(page, data)
    assert answer.split(b"\r\n")[0][9:12] in (b"400", b"501")  # 501: a coding that HTTP says may be unknown
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_what_is_wrong_with_such_a_request_is_said(page: Served) -> None:
    head = b"POST /kill HTTP/1.1\r\nHost: localhost\r\n"
    assert b"Transfer-Encoding" in said(page, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert b"may have one Content-Length" in said(page, head + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na")


def test_who_says_nothing_is_closed(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_http, "ANSWER", 0.2)
    assert said(page, b"") == b""
    assert said(page, b"GET /healthz HTTP/1.1\r\nHost: localh") == b""  # nor who never ends


def test_the_longest_idle_makes_room(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_http, "MOST", 4)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(page.page_address)) for _ in range(8)]
        assert page.ask("/healthz").status == 200
        idle[0].settimeout(scaled(5))
        assert idle[0].recv(1) == b""


def test_a_defect_of_ours_ends_one_connection(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr(page.shell.recorder, "bytes", fail)
    assert said(page, b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
    wait_for(lambda: page.ask("/healthz").status == 200, 5.0, "an answer")


def test_many_requests_take_their_time_and_all_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_http, "PER_SECOND", 10.0)
    monkeypatch.setattr(page_http, "BURST", 3)
    more = 5
    with (
        served() as page,
        contextlib.closing(http.client.HTTPConnection(*page.page_address, timeout=scaled(20))) as connection,
    ):
        began = time.monotonic()
        for _ in range(page_http.BURST + more):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
    assert time.monotonic() - began > 0.9 * more / page_http.PER_SECOND


def test_turns_of_all_together() -> None:
    budget = page_http.Budget(10.0, 5)
    assert [budget.wait(100.0) for _ in range(5)] == [0.0] * 5
    assert budget.wait(100.0) == pytest.approx(0.1)
    assert budget.wait(100.0) == pytest.approx(0.2)
    assert budget.wait(101.0) == 0.0  # who waited has had its turn
    saved = [budget.wait(200.0) for _ in range(6)]
    assert saved == [*[0.0] * 5, pytest.approx(0.1)]  # no more than a burst
