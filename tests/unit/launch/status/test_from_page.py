"""The overview over HTTP, if it is this lighthouse's."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.unit.rpc.lighthouse.page.served import served
from torchft_x.launch.status.from_page import from_page
from torchft_x.net import Address, parse_address


def test_this_lighthouses_page(tmp_path: Path) -> None:
    with served() as lighthouse:
        (tmp_path / "page").write_text(f"{lighthouse.page.url}\n")
        found = from_page(tmp_path, parse_address(lighthouse.address), 10.0)
        assert found["schema"] == 1
        assert from_page(tmp_path, Address("127.0.0.1", 1), 10.0) is None  # that of another one
        (tmp_path / "page").chmod(0o622)  # T1: `status --url` puts the token behind the address that a page tells
        assert from_page(tmp_path, parse_address(lighthouse.address), 10.0) is None


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n\r\n[[", b"HTTP/1.1 200 OK\r\n\r\n[]"]
)
def test_another_program_has_got_its_port(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        (tmp_path / "page").write_text(f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert from_page(tmp_path, Address("127.0.0.1", 1), 5.0) is None


def test_without_one(tmp_path: Path) -> None:
    assert from_page(tmp_path, Address("127.0.0.1", 1), 5.0) is None
    (tmp_path / "page").write_bytes(b"\xff")
    assert from_page(tmp_path, Address("127.0.0.1", 1), 5.0) is None
    (tmp_path / "page").write_text("http://127.0.0.1:1/")
    assert from_page(tmp_path, Address("127.0.0.1", 1), 5.0) is None
