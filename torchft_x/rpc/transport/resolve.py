"""Addresses of the lighthouses that a client connects to: those given, and the new ones of those that moved."""

from __future__ import annotations

import logging
import time
from functools import cache
from pathlib import Path

from torchft_x import env
from torchft_x.address_files import read_address
from torchft_x.errors import AddressError, ConfigError
from torchft_x.net import Address, check_any_resolvable, parse_addresses

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT = 3.0
"""Seconds for which an unknown lighthouse name is looked up again: a cluster's names appear a moment after their
pods."""
_WHAT = f"lighthouse address ({env.LIGHTHOUSE})"


def find_lighthouses(given: str) -> tuple[Address, ...]:
    """Parse comma-separated addresses; wait until a name is known. Raises `AddressError` that names the variable."""
    addresses = parse_addresses(given, what=_WHAT)
    env.enable_tls_if_https(given)
    deadline = time.monotonic() + RESOLVE_TIMEOUT
    while True:
        try:
            check_any_resolvable(addresses, what=_WHAT)
            return addresses
        except AddressError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)


def moved_to(file: str) -> tuple[Address, ...]:
    """Return the address that a job's own lighthouse wrote to `file`; () if unreadable. Blocks on the file system."""
    try:
        address = read_address(Path(file))
    except (OSError, AddressError):
        return ()
    except ConfigError as e:
        _warn(str(e))
        return ()
    return () if address is None else (address,)


@cache
def _warn(sentence: str) -> None:
    """Log each sentence once, since the file is read again at each try to connect."""
    log.warning("The lighthouse is not looked for anew: %s", sentence)
