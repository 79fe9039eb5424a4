"""Which lighthouse a group server connects to: the one given. A list is refused, see `net.parse_addresses`."""

from __future__ import annotations

import time

from torchft_x import env
from torchft_x.errors import AddressError
from torchft_x.net import Address, check_resolvable, parse_addresses

RESOLVE_TIMEOUT = 3.0
"""Seconds an unknown lighthouse name is looked up again: names of a cluster appear a moment after their pods."""
_WHAT = f"lighthouse address ({env.LIGHTHOUSE})"


def find_lighthouse(given: str) -> Address:
    """`given`: an address whose name must be known. Raises `AddressError` naming the variable."""
    (address,) = parse_addresses(given, what=_WHAT)
    deadline = time.monotonic() + RESOLVE_TIMEOUT
    while True:
        try:
            check_resolvable(address, what=_WHAT)
            return address
        except AddressError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)
