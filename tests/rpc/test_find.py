"""Which of several lighthouses a group connects to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.rpc.support import group, known, lighthouse
from tests.util import wait_for
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address
from torchft_x.rpc import find
from torchft_x.rpc.find import find_lighthouse


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens, for as long as the test runs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{s.getsockname()[1]}"


def test_one_address_is_taken_as_it_is(nobody: str) -> None:
    assert find_lighthouse(f"http://{nobody}", 1.0).target == nobody  # whether it answers is the session's matter


def test_the_first_of_a_list_that_answers(nobody: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [s.getsockname()[1] for s in (first, second)]
        given = f"{nobody}, http://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        assert find_lighthouse(given, 10.0) == Address("127.0.0.1", ports[0])


def test_none_of_a_list_answers_in_time(nobody: str) -> None:
    with pytest.raises(UnreachableError, match="None of the lighthouses in TORCHFT_LIGHTHOUSE") as e:
        find_lighthouse(f"{nobody},no.such.host.invalid:1", 0.0)
    assert f"http://{nobody}: Connection refused" in str(e.value)
    assert "http://no.such.host.invalid:1: " in str(e.value)


def test_a_group_joins_at_a_stand_by(nobody: str) -> None:
    with lighthouse() as lh, group("a:1", f"{nobody},{lh.address()}"):
        wait_for(lambda: known(lh) == ["a:1"], what="the group to be known")


def test_a_wrong_one_among_them_and_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AddressError, match="TORCHFT_LIGHTHOUSE"):
        find_lighthouse("127.0.0.1:1,nowhere", 1.0)
    monkeypatch.setattr(find, "RESOLVE_TIMEOUT", 0.0)
    with pytest.raises(AddressError, match="can't be resolved"):
        find_lighthouse("no.such.host.invalid:1", 1.0)
