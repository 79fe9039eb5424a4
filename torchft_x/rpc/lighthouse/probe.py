"""Does somebody still listen at a dead-looking member's address?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

from torchft_x.errors import AddressError
from torchft_x.net import parse_address

TIMEOUT = 1.0
"""Seconds one connect may take. On a network that drops packets nothing is known after it."""


def pauses(total: float) -> Iterator[float]:
    """Waits between repeated probes: a dying process may close its listening socket after its streams.

    Each is a fifth of the time so far, so that the refusal is noticed soon after there is one.
    """
    spent = 0.0
    while spent < total:
        pause = min(max(0.01, spent / 5), 0.2)
        yield pause
        spent += pause


async def is_refused(address: str) -> bool:
    """Whether every address behind this one refuses a connect now. False when it is accepted or nothing is known."""
    try:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        found = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), TIMEOUT)
        answers = [await _connect(family, target) for family, _, _, _, target in found]
    except (AddressError, OSError, asyncio.TimeoutError):
        return False
    return bool(answers) and all(answers)


async def _connect(family: int, target: Any) -> bool:
    """True: refused."""
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(s, target), TIMEOUT)
        except ConnectionRefusedError:
            return True
    return False
