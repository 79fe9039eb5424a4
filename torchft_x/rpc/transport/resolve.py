"""Which lighthouses a group server connects to: those given, one or several."""

from __future__ import annotations

import time

from torchft_x import env
from torchft_x.errors import AddressError
from torchft_x.net import Address, check_any_resolvable, parse_addresses

RESOLVE_TIMEOUT = 3.0
"""Seconds an unknown lighthouse name is looked up again: names of a cluster appear a moment after their pods."""
_WHAT = f"lighthouse address ({env.LIGHTHOUSE})"


def find_lighthouses(given: str) -> tuple[Address, ...]:
    """`given`: addresses of which one name must be known. Raises `AddressError` naming the variable."""
    addresses = parse_addresses(given, what=_WHAT)
    deadline = time.monotonic() + RESOLVE_TIMEOUT
    while True:
        try:
            check_any_resolvable(addresses, what=_WHAT)
            return addresses
        except AddressError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)
