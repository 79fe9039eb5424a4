"""Which lighthouse a group connects to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from torchft_x.errors import AddressError
from torchft_x.rpc import find
from torchft_x.rpc.find import find_lighthouse


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens, for as long as the test runs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{s.getsockname()[1]}"


def test_one_address_is_taken_as_it_is(nobody: str) -> None:
    assert find_lighthouse(f"http://{nobody}").target == nobody  # whether it answers is the session's matter


def test_several_are_refused_with_a_sentence(nobody: str) -> None:
    """Groups that reach different ones would train apart."""
    with pytest.raises(AddressError, match=r"TORCHFT_LIGHTHOUSE.* names 2 lighthouses, and only one can serve a job"):
        find_lighthouse(f"{nobody},127.0.0.1:1")
    with pytest.raises(AddressError, match=r"http://127.0.0.1:1 is in it twice"):
        find_lighthouse("127.0.0.1:1, http://127.0.0.1:1")


def test_a_wrong_one_among_them_and_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AddressError, match="TORCHFT_LIGHTHOUSE"):
        find_lighthouse("127.0.0.1:1,nowhere")
    monkeypatch.setattr(find, "RESOLVE_TIMEOUT", 0.0)
    with pytest.raises(AddressError, match="can't be resolved"):
        find_lighthouse("no.such.host.invalid:1")
