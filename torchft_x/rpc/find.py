"""Which lighthouse a group server connects to: the one given, or of several the first that answers."""

from __future__ import annotations

import socket
import time

from torchft_x import env
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address, check_resolvable, parse_addresses

RESOLVE_TIMEOUT = 3.0
"""Seconds an unknown lighthouse name is looked up again: names of a cluster appear a moment after their pods."""
_WHAT = f"lighthouse address ({env.LIGHTHOUSE})"
_CONNECT = 1.0  # seconds for one address of several
_PAUSE = 0.2  # seconds between two looks


def find_lighthouse(given: str, timeout: float) -> Address:
    """`given`: an address whose name must be known, or a comma-separated list of which one must answer in time.

    A list is for stand-bys: the first that takes a connection is used until the group server ends. Raises `AddressError`
    naming the variable, `UnreachableError` if none of several answers within `timeout` seconds.
    """
    addresses = parse_addresses(given, what=_WHAT)
    return _known(addresses[0]) if len(addresses) == 1 else _first_to_answer(addresses, timeout)


def _known(address: Address) -> Address:
    deadline = time.monotonic() + RESOLVE_TIMEOUT
    while True:
        try:
            check_resolvable(address, what=_WHAT)
            return address
        except AddressError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)


def _first_to_answer(addresses: tuple[Address, ...], timeout: float) -> Address:
    deadline = time.monotonic() + timeout
    while True:
        failures = []
        for address in addresses:
            try:
                socket.create_connection((address.host, address.port), timeout=_CONNECT).close()
                return address
            except (OSError, UnicodeError) as e:  # UnicodeError: a name that can't be one
                failures.append(f"{address.url}: {getattr(e, 'strerror', None) or e}")
        if time.monotonic() >= deadline:
            raise UnreachableError(
                f"None of the lighthouses in {env.LIGHTHOUSE} answers within {timeout:g} s ({'; '.join(failures)}); "
                "is one of them running?"
            )
        time.sleep(_PAUSE)
