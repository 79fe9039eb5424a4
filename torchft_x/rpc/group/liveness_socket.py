"""A listening socket that exists as long as this process runs.

By it, a lighthouse sees whether a group that has left and has no supervisor still evaluates or saves (R21). No code
accepts or reads: the kernel takes connections until its queue is full, then it drops them. Only a refused connect has
a meaning: the process is gone. A new group server in this process closes the sockets of the old ones.
"""

from __future__ import annotations

import atexit
import logging
import socket
import threading

from torchft_x.descriptors import close, not_inherited
from torchft_x.errors import AddressError
from torchft_x.net import Address, any_host, parse_address

log = logging.getLogger(__name__)

_BACKLOG = 128
_lock = threading.Lock()  # guards _sockets
_sockets: list[socket.socket] = []


def begin(beside: str) -> str:
    """Open a socket and return its address, with the host of the address `beside`; '' if that fails."""
    try:
        host, any_address = parse_address(beside).host, any_host()
        family = socket.AF_INET6 if ":" in any_address else socket.AF_INET
        listening = not_inherited(
            socket.create_server(
                (any_address, 0), family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6
            )
        )
    except (AddressError, OSError, ValueError) as e:
        log.debug("no socket stands for this process: %s", e)
        return ""
    with _lock:
        _sockets.append(listening)
    return Address(host, listening.getsockname()[1]).url


def end() -> None:
    """Close all sockets, because this process now works for a new group server."""
    with _lock:
        sockets, _sockets[:] = list(_sockets), []
    for listening in sockets:
        close(listening)


atexit.register(end)
