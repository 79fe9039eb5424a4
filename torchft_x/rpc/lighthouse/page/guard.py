"""Who may ask what, and how often. Pure but for the clock that is passed in.

A page in a browser is asked by every web site that the browser visits. So a request must name this host by an address, by
`localhost` or by a name of its own (a foreign name may be made to lead here: DNS rebinding), and what changes something
must carry the token in a header, which no other site can make a browser send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping

from torchft_x.rpc.transport.token import is_allowed

TOKEN_HEADER = "x-torchft-x-token"
"""Where Authorization is for somebody on the way, as for Kubernetes' API server. No other site can make a browser send it."""


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a request's Host is an IP address, the local host, or one of these names (in lower case)."""
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
    """Whether a request's headers carry the token; without a token nobody has it."""
    own = headers.get(TOKEN_HEADER)
    header = f"Bearer {own}" if own is not None else headers.get("authorization")
    return token is not None and header is not None and is_allowed([("authorization", header)], token)


class Budget:
    """So many turns a second for all callers together, and `burst` at once. Everybody waits, nobody is refused."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._each = 1.0 / per_second
        self._credit = burst / per_second  # seconds
        self._next = float("-inf")  # when the next turn would be without a burst

    def wait(self, now: float) -> float:
        """Take a turn: in how many seconds it is."""
        self._next = max(self._next, now - self._credit) + self._each
        return max(0.0, self._next - now)
