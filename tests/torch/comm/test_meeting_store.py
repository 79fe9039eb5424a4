"""The store where groups meet: what members get of it, and what a stranger gets, who is refused before anything else."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from tests.torch.train.fakes import background
from tests.util import scaled
from torchft_x.comm import create_store_client
from torchft_x.comm.store import table, wire
from torchft_x.comm.store.create import (
    KeyedAddress,
    StoreClient,
    host_store,
    serve_store,
    split_store_address,
)
from torchft_x.comm.store.server import MAX_STRANGERS, StoreServer
from torchft_x.errors import AddressError, UnreachableError

HOST = "127.0.0.1"


@pytest.fixture
def served() -> Iterator[tuple[StoreServer, KeyedAddress]]:
    server, address = serve_store(HOST)
    yield server, address
    server.close()


def connected(address: KeyedAddress, seconds: float = 10.0) -> dist.Store:
    client = StoreClient(address)
    store = client.open(scaled(seconds))
    store.client = client  # type: ignore[attr-defined]  # for tests that shut it
    return store


def raw(address: KeyedAddress) -> socket.socket:
    return socket.create_connection((address.host, address.port), scaled(10))


def hung_up(sock: socket.socket) -> bool:
    """The other side has closed, whatever it has said before."""
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_an_address_holds_the_key_and_shows_it_to_nobody(served: tuple[StoreServer, KeyedAddress]) -> None:
    _, address = served
    assert split_store_address(f"{address.text}/a/b") == (address, "a/b")
    assert address.key not in f"{address!r} {address.target} {StoreClient(address)!r}"
    for wrong in ("keyed://h:1/p", "keyed://@h:1", "keyed://xyz@h:1", "keyed://ab@h", "keyed://ab@h:0"):
        with pytest.raises(AddressError) as e:
            split_store_address(wrong)
        assert "xyz" not in str(e.value)


@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_it_is_a_store_to_torch(served: tuple[StoreServer, KeyedAddress], kind: str) -> None:
    if kind == "torch's":
        kept, where = host_store(HOST)
        assert kept.port == where.port
        store: dist.Store = StoreClient(where).open(scaled(10.0))
    else:
        store = connected(served[1])
    keys = store.num_keys()  # torch's store has one of its own
    under = dist.PrefixStore("p", store)
    under.set("a", "1")
    assert store.get("p/a") == b"1"
    assert under.get("a") == b"1"
    assert under.add("n", 2) == 2
    assert under.add("n", -5) == -3
    assert (under.check(["a", "n"]), under.check(["a", "x"])) == (True, False)
    assert under.compare_set("c", "", "new") == b"new"
    assert under.compare_set("c", "other", "newer") == b"new"
    assert under.compare_set("c", "new", "newer") == b"newer"
    assert under.compare_set("d", "other", "new") == b"other"
    below = store.under("p")  # type: ignore[attr-defined]
    assert (below.value_within("a", 1.0), below.value_within("x", 0.01)) == (b"1", None)
    under.set("c", b"\x88\0")
    assert under.get("c") == b"\x88\0"
    under.append("a", "2")
    under.multi_set(["m", "n"], ["3", "4"])
    assert under.multi_get(["a", "m", "n"]) == [b"12", b"3", b"4"]
    assert under.num_keys() == keys + 4
    assert (below.delete_key("d"), below.delete_key("n")) == (False, True)
    assert (under.delete_key("a"), under.delete_key("a")) == (True, False)
    with pytest.raises(dist.DistStoreError, match="has not got p/a in time"):
        under.wait(["a"], timedelta(milliseconds=20))
    assert under.num_keys() == keys + 2  # the connection is as good as before


def test_who_waits_is_told_at_once_and_can_be_released(served: tuple[StoreServer, KeyedAddress]) -> None:
    _, address = served
    store, other = connected(address, 60.0), connected(address)
    waits = background(lambda: store.get("k"))
    other.set("k", "v")
    assert waits.result(scaled(10)) == b"v"
    other.delete_key("k")
    waits = background(lambda: store.get("k"))
    store.client.shut()  # type: ignore[attr-defined]
    assert isinstance(waits.exception(scaled(10)), dist.DistNetworkError)
    with pytest.raises(UnreachableError, match="was shut"):
        store.client.open(1.0)  # type: ignore[attr-defined]


def test_a_client_of_another_store_is_refused_by_both_sides(served: tuple[StoreServer, KeyedAddress]) -> None:
    _, address = served
    wrong = address._replace(key="00" * 16)
    with pytest.raises(UnreachableError, match="another store than the address names"):
        connected(wrong)
    with raw(address) as sock:
        sock.sendall(wire.NAME + b"n" * wire.NONCE)
        assert len(sock.recv(wire.NONCE + wire.PROOF, socket.MSG_WAITALL)) == wire.NONCE + wire.PROOF
        sock.sendall(b"p" * wire.PROOF + wire.pack(wire.SET, [b"k", b"v"]))
        assert hung_up(sock)
    assert not connected(address).check(["k"])


def test_strangers_take_neither_memory_nor_the_members_places(served: tuple[StoreServer, KeyedAddress]) -> None:
    _, address = served
    store = connected(address)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strangers = [raw(address) for _ in range(MAX_STRANGERS + 20)]
    for sock in strangers:
        sock.settimeout(0.05)
        try:
            sock.sendall(b"x" * 200_000)
        except OSError:
            pass
        sock.settimeout(scaled(10))
    assert all(hung_up(sock) for sock in strangers)
    silent = [raw(address) for _ in range(MAX_STRANGERS + 20)]
    store.set("k", "v")
    assert connected(address).get("k") == b"v"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    for sock in (*strangers, *silent):
        sock.close()


def test_a_member_can_not_fill_it_either(
    served: tuple[StoreServer, KeyedAddress], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = served
    store = connected(address)
    monkeypatch.setattr(table, "MAX_BYTES", 1000)
    store.set("k", "v" * 900)
    assert store.get("k") == b"v" * 900
    store.set("l", "w" * 900)
    assert store.get("l") == b"w" * 900  # what was written longest ago has made room
    assert store.num_keys() == 1
    with pytest.raises(dist.DistNetworkError, match="at most"):
        connected(address).set("k", b"v" * (wire.MAX_REQUEST + 1))


@pytest.mark.parametrize(
    "frame",
    [
        (1 << 31).to_bytes(4, "big"),
        b"\0\0\0\1x",
        wire.pack(99, [b"a"]),
        wire.pack(wire.SET, [b"a"]),
        wire.pack(wire.GET, []),
        wire.pack(wire.GET, [b"soon", b"k"]),
        wire.pack(wire.ADD, [b"a", b"1e9"]),
        wire.pack(wire.SET, [b"a", b"b"])[:-1] + b"",
        (9).to_bytes(4, "big") + b"\1" + (1 << 30).to_bytes(4, "big") + b"abcd",
    ],
)
def test_nonsense_ends_the_connection_that_it_came_by(served: tuple[StoreServer, KeyedAddress], frame: bytes) -> None:
    _, address = served
    store = connected(address)
    sock = store.client._socket  # type: ignore[attr-defined]
    assert sock is not None
    sock.sendall(frame)
    sock.shutdown(socket.SHUT_WR)
    assert hung_up(sock)
    assert connected(address).num_keys() == 0


def test_its_end_is_noticed() -> None:
    server, address = serve_store(HOST)
    store = connected(address, 60.0)
    waits = background(lambda: store.wait(["k"]))
    server.close()
    with pytest.raises(RuntimeError, match="is lost"):
        waits.result(scaled(10))
    with pytest.raises(UnreachableError, match="the process that hosts it is gone"):
        create_store_client(address.text, scaled(5))
