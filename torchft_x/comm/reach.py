"""Find the members whose hosts don't answer this one, after connects to them failed (`train.context.failures`)."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping

from torchft_x.descriptors import not_inherited
from torchft_x.errors import AddressError
from torchft_x.net import parse_address

_AT_ONCE = 64  # connects under way at the same time
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN)


def unanswered(addresses: Mapping[str, str], seconds: float) -> tuple[str, ...]:
    """Return the names of the addresses (``http://host:port``) whose hosts have not answered a connect in `seconds`.

    A refused connect is an answer. An address that can't be resolved says nothing about the link, and is left out.
    """
    silent: list[str] = []
    left = list(addresses.items())
    under_way: dict[int, tuple[str, socket.socket]] = {}  # keyed by descriptor
    poll = select.poll()
    deadline = time.monotonic() + seconds
    try:
        while (left or under_way) and (rest := deadline - time.monotonic()) > 0:
            while left and len(under_way) < _AT_ONCE:
                name, address = left.pop(0)
                sock = _begin(address)
                if sock is not None:
                    under_way[sock.fileno()] = (name, sock)
                    poll.register(sock, select.POLLOUT)
            for fd, _ in poll.poll(rest * 1000):
                poll.unregister(fd)
                name, sock = under_way.pop(fd)
                with sock:
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _NO_WAY:
                        silent.append(name)
        silent += [name for name, _ in under_way.values()]
    finally:
        for _, sock in under_way.values():
            sock.close()
    return tuple(sorted(silent))


def _begin(address: str) -> socket.socket | None:
    """Start a connect and return its socket; None if the address can't be resolved."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(*parse_address(address), type=socket.SOCK_STREAM)[0]
    except (AddressError, OSError):
        return None
    sock = not_inherited(socket.socket(family, kind, protocol))
    sock.setblocking(False)
    sock.connect_ex(target)
    return sock
