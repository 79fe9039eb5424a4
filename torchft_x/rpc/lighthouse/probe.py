"""Probe of a silent member's address: a refused connect shows that its process is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

from torchft_x.errors import AddressError
from torchft_x.net import parse_address

TIMEOUT = 1.0
"""Seconds that one connect may take. On a network that drops packets the result is then unknown."""


def pauses(total: float) -> Iterator[float]:
    """Yield the pauses between repeated probes, `total` seconds in all.

    A dying process may close its listening socket after its streams. Each pause is a fifth of the time so far, so
    that a refusal is noticed soon.
    """
    spent = 0.0
    while spent < total:
        pause = min(max(0.01, spent / 5), 0.2)
        yield pause
        spent += pause


async def is_refused(address: str) -> bool:
    """Return whether all IP addresses of `address` refuse a connect now. False if one accepts, or it is unknown."""
    try:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        found = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), TIMEOUT)
        answers = [await _connect(family, target) for family, _, _, _, target in found]
    except (AddressError, OSError, asyncio.TimeoutError):
        return False
    return bool(answers) and all(answers)


async def _connect(family: int, target: Any) -> bool:
    """Connect once, and return whether the connect was refused."""
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(s, target), TIMEOUT)
        except ConnectionRefusedError:
            return True
    return False
