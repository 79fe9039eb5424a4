"""Checks of requests to the page, and their rate limit. Pure: the caller passes the time.

Every web site that a browser visits can send requests to the page. So a request must name this host by an address, by
`localhost` or by a name of its own, because a foreign name may resolve to this host (DNS rebinding). A request that
changes something must carry the token in a header, which no other site can make a browser send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping

from torchft_x.rpc.transport.token import is_allowed

TOKEN_HEADER = "x-torchft-x-token"
"""Header for the token where a proxy uses Authorization, as Kubernetes' API server does. No other site can make a
browser send it."""


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Return whether a request's Host is an IP address, the local host, or one of these names (in lower case)."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    host = host.rstrip(".")
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return bool(host)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def has_token(headers: Mapping[str, str], token: str | None) -> bool:
    """Return whether a request's headers carry the token. False if there is no token."""
    own = headers.get(TOKEN_HEADER)
    header = f"Bearer {own}" if own is not None else headers.get("authorization")
    return token is not None and header is not None and is_allowed([("authorization", header)], token)


class Budget:
    """Rate limit for all callers together: `per_second` turns, and `burst` at once. Callers wait; none is refused."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._each = 1.0 / per_second
        self._credit = burst / per_second  # seconds by which a burst may run ahead
        self._next = float("-inf")  # time of the next turn if there were no burst

    def wait(self, now: float) -> float:
        """Take a turn, and return the seconds until it comes."""
        self._next = max(self._next, now - self._credit) + self._each
        return max(0.0, self._next - now)
