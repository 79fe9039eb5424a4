from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterator

import pytest

from tests.util import scaled
from torchft_x import descriptors
from torchft_x.comm.gloo.device import Device, listener_inode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the lists of sockets are Linux's")

Pair = tuple[socket.socket, socket.socket]


def connection() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def is_ended(far: socket.socket) -> bool:
    far.settimeout(scaled(5))
    return far.recv(1) == b""


def is_alive(pair: Pair) -> bool:
    near, far = pair
    near.sendall(b"x")
    far.settimeout(scaled(5))
    return far.recv(1) == b"x"


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [connection() for _ in range(3)]
    yield made
    for near, far in made:
        near.close()
        far.close()


@pytest.fixture
def loop(pairs: list[Pair]) -> Iterator[int]:
    """An event loop that watches a listening socket and the near ends of the first two."""
    with socket.create_server(("127.0.0.1", 0)) as server, select.epoll() as watching:
        watching.register(server, select.EPOLLIN)
        for near, _ in pairs[:2]:
            watching.register(near, select.EPOLLIN)
        yield watching.fileno()


def device(loop: int, **other: int) -> Device:
    inode = listener_inode(loop)
    assert inode is not None
    return Device(None, "127.0.0.1", **{"epoll": loop, "listener": inode, **other})


def test_event_loop_is_listed_with_what_it_watches(loop: int, pairs: list[Pair]) -> None:
    assert loop in descriptors.epolls()
    near = pairs[0][0].getsockname()
    assert f"{near[0]}:{near[1]}" in device(loop).addresses()
    assert len(device(loop).peers()) == 2
    assert "{}:{}".format(*pairs[2][0].getsockname()) not in device(loop).addresses()


def test_exactly_the_connections_of_a_device_are_shut(loop: int, pairs: list[Pair]) -> None:
    ours = device(loop)
    ours.shut()
    assert is_ended(pairs[0][1])
    assert is_ended(pairs[1][1])
    assert is_alive(pairs[2])
    assert listener_inode(loop) is not None, "the listening socket is spared"


def test_sockets_of_another_loop_are_left_alone(loop: int, pairs: list[Pair]) -> None:
    device(loop, listener=1).shut()
    device(loop, epoll=10_000).shut()
    assert all(map(is_alive, pairs))
