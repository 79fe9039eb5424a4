"""Where the page is, and what becomes of it where it can't be."""

from __future__ import annotations

import http.client
import socket
import sys

import pytest

from tests.unit.rpc.lighthouse.page.served import served
from tests.util import scaled
from torchft_x.errors import AddressError
from torchft_x.net import any_host, parse_address
from torchft_x.rpc.lighthouse.page import start
from torchft_x.rpc.lighthouse.page.http import HttpServer
from torchft_x.rpc.transport import loop


def test_by_default_on_the_loopback_ten_ports_above() -> None:
    with served(bind=None) as page:
        assert page.page_address.host == "127.0.0.1"
        wanted = parse_address(page.address).port + 10
        with socket.socket() as s:
            assert page.page_address.port == wanted or s.connect_ex(("127.0.0.1", wanted)) == 0
        assert page.ask("/healthz").status == 200


def test_a_default_port_that_is_taken_is_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lighthouse = taken.getsockname()[1] - 10
        server = HttpServer(lambda request: None)  # type: ignore[arg-type,return-value]

        async def listen() -> int:
            at = start._listen(server, None, lighthouse)
            await server.close()
            return at.port

        assert loop.call(listen(), 10.0) not in (0, taken.getsockname()[1])


def test_a_port_that_was_asked_for_and_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(bind=f"127.0.0.1:{port}") as page:
            assert page.page.url == ""
            assert page.page.trouble == (
                f"The page can't listen on 127.0.0.1:{port}: Address already in use. The lighthouse serves without it; "
                "--http_bind names another address, or off."
            )


def test_without_h11_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchft_x.rpc.lighthouse.page.http", "torchft_x.rpc.lighthouse.page.routes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    with served() as page:
        assert page.page.url == ""
        assert "pip install h11" in page.page.trouble


@pytest.mark.skipif(any_host() != "::", reason="this machine has no IPv6")
def test_everywhere_is_both_of_ip() -> None:
    with served(bind="[::]:0") as page:
        port = page.page_address.port
        for host in ("127.0.0.1", "::1"):
            connection = http.client.HTTPConnection(host, port, timeout=scaled(5))
            connection.request("GET", "/readyz")
            assert connection.getresponse().status == 200
            connection.close()


def test_everywhere_without_ipv6_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchft_x.net.any_host", lambda: "0.0.0.0")
    with served(bind="[::]:0") as page:
        assert page.ask("/readyz").status == 200


def test_off() -> None:
    with served(bind="off") as page:
        assert (page.page.url, page.page.trouble) == ("", "")


def test_what_is_no_address_is_said_before_anything_starts() -> None:
    assert start.checked(None) is None
    assert start.checked("off") == "off"
    with pytest.raises(AddressError, match=r"--http_bind 'everywhere' has no valid port"):
        start.checked("everywhere")
