"""Finding the lighthouse: given, or by the file in the run directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchft_x.errors import AddressError, ConfigError
from torchft_x.launch.locate import Locator


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_by_the_file_with_the_token_beside_it(tmp_path: Path, port: int) -> None:
    locator = Locator(tmp_path, None, {})
    assert locator.look() is None
    assert str(tmp_path / "lighthouse") in locator.missing
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{port}\n")
    found = locator.look()
    assert found is not None
    assert found.address.url == f"http://127.0.0.1:{port}"
    assert found.token == "secret"
    assert found.token_file == str(tmp_path / "token")
    assert "secret" not in repr(found)


def test_a_file_that_names_nobody_is_read_again(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{gone.getsockname()[1]}")
    locator = Locator(tmp_path, None, {})
    assert locator.look() is None
    assert "refused" in locator.missing
    (tmp_path / "lighthouse").write_text(f"http://127.0.0.1:{port}")
    assert locator.look() is not None


def test_a_given_address_and_the_tokens_of_the_environment(tmp_path: Path, port: int) -> None:
    (tmp_path / "token").write_text("of another lighthouse")
    address = f"http://127.0.0.1:{port}"
    assert Locator(tmp_path, address, {}).look().token is None
    found = Locator(tmp_path, address, {"TORCHFT_X_TOKEN": "t"}).look()
    assert (found.token, found.token_file) == ("t", None)


@pytest.mark.parametrize("address", ["nowhere", "http://no.such.host.invalid:1"])
def test_a_wrong_address_fails_at_once_and_names_the_variable(address: str) -> None:
    with pytest.raises(AddressError, match="TORCHFT_LIGHTHOUSE") as caught:
        Locator(None, address, {})
    assert address in str(caught.value)


def test_nothing_to_go_by() -> None:
    with pytest.raises(ConfigError, match="--run_dir"):
        Locator(None, None, {})
