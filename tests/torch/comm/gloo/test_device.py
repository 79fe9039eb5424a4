from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterator

import pytest

from tests.util import scaled
from torchft_x import descriptors
from torchft_x.comm.store import sockets

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
def watched(pairs: list[Pair]) -> Iterator[tuple[int, int]]:
    """An event loop that watches a listening socket and the near ends of the first two; (epoll, listener's inode)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = select.epoll()
        loop.register(server, select.EPOLLIN)
        for near, _ in pairs[:2]:
            loop.register(near, select.EPOLLIN)
        inode = sockets.listener_inode(loop.fileno())
        assert inode is not None
        yield loop.fileno(), inode
        loop.close()


def test_event_loop_is_listed_with_what_it_watches(watched: tuple[int, int], pairs: list[Pair]) -> None:
    epoll, _ = watched
    assert epoll in descriptors.epolls()
    fds = {fd for fd, _ in descriptors.registered(epoll)}
    assert {near.fileno() for near, _ in pairs[:2]} < fds
    assert pairs[2][0].fileno() not in fds
    near = pairs[0][0].getsockname()
    assert f"{near[0]}:{near[1]}" in sockets.local_addresses(epoll)


def test_shut_watched_shuts_exactly_those(watched: tuple[int, int], pairs: list[Pair]) -> None:
    assert sockets.shut_watched(*watched) == 2
    assert is_ended(pairs[0][1])
    assert is_ended(pairs[1][1])
    assert is_alive(pairs[2])
    assert sockets.listener_inode(watched[0]) == watched[1], "the listening socket is spared"


def test_shut_watched_does_nothing_to_another_loop(watched: tuple[int, int], pairs: list[Pair]) -> None:
    assert sockets.shut_watched(watched[0], watched[1] + 1) == 0
    assert sockets.shut_watched(10_000, watched[1]) == 0
    assert all(map(is_alive, pairs))
