from __future__ import annotations

import socket
import time

import pytest
import torch.distributed as dist

from tests.torch.train.fakes import background
from tests.util import scaled
from torchft_x.comm.store.create import StoreClient, create_store_client, host_store, split_store_address
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address


def test_addresses() -> None:
    assert split_store_address("host:1234/a/b/0") == (Address("host", 1234), "a/b/0")
    assert split_store_address("[::1]:1234/a") == (Address("::1", 1234), "a")
    assert split_store_address("::1:1234/a") == (Address("::1", 1234), "a")  # torchft's form: a port always follows
    assert split_store_address("host:1234") == (Address("host", 1234), "")
    for text in ("host", "host/a", ":1/a", "host:0/a", "fdaa::1/a", "a:b:1234/a"):
        with pytest.raises(AddressError):
            split_store_address(text)


def test_nobody_there_is_told_at_once() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}"):
        create_store_client(f"127.0.0.1:{port}/x", 60.0)
    assert time.monotonic() - start < scaled(3)


def test_shut_ends_a_blocking_call_and_no_other_clients(store: dist.TCPStore) -> None:
    address = Address("127.0.0.1", store.port)
    client, bystander = StoreClient(address), StoreClient(address)
    mine, others = client.open(60.0), bystander.open(60.0)
    blocked = background(lambda: mine.get("never set"))
    client.shut()
    assert isinstance(blocked.exception(scaled(5)), RuntimeError)
    assert StoreClient.of(address, client) is not client
    assert StoreClient.of(address, bystander) is bystander
    others.set("shut", "no")
    assert others.get("shut") == b"no"
    with pytest.raises(UnreachableError, match="was shut"):
        client.open(1.0)


def test_open_client_is_used_again_and_a_lost_one_reconnects(store: dist.TCPStore) -> None:
    client = StoreClient(Address("127.0.0.1", store.port))
    first = client.open(5.0)
    assert client.open(5.0) is first
    first._connection._is_shut = True  # type: ignore[attr-defined]  # as if the connection had been lost
    again = client.open(5.0)
    assert again is not first
    again.set("again", "1")
    assert again.get("again") == b"1"


def test_a_hosted_store_serves_its_address_and_only_loopback_for_loopback() -> None:
    store, address = host_store("127.0.0.1", scaled(10))
    client = create_store_client(f"{address.target}/p", scaled(10))
    client.set("k", "v")
    assert store.get("p/k") == b"v"
    with open("/proc/net/tcp", encoding="ascii") as f:
        listening = [line.split()[1] for line in f if line.split()[3] == "0A"]
    assert f"0100007F:{address.port:04X}" in listening, "it listens on 127.0.0.1, not on every address"


def test_a_store_for_a_host_that_is_not_ours_is_refused_with_a_sentence() -> None:
    with pytest.raises(AddressError, match=r"no\.such\.host\.invalid.*can't be resolved"):
        host_store("no.such.host.invalid", scaled(10))
