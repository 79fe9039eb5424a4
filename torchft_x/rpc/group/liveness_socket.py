"""A socket that stands as long as this process runs: so a lighthouse sees whether a group that has left still evaluates
or saves, where no supervisor says so (R21).

Nothing serves it and nothing is read: the kernel takes connections until its queue is full, then it drops them. Only a
refused connect has a meaning, that the process is gone. A new group server in this process ends the old ones' sockets.
"""

from __future__ import annotations

import logging
import socket
import threading

from torchft_x.descriptors import close, not_inherited
from torchft_x.errors import AddressError
from torchft_x.net import Address, any_host, parse_address

log = logging.getLogger(__name__)

_BACKLOG = 128
_lock = threading.Lock()  # guards what is below
_sockets: list[socket.socket] = []


def begin(beside: str) -> str:
    """The address of a new socket, on the host of the address `beside`; '' if there can't be one."""
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
    """This process does something else now."""
    with _lock:
        sockets, _sockets[:] = list(_sockets), []
    for listening in sockets:
        close(listening)
