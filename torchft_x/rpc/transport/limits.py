"""Nothing that arrives is trusted: every text, list and number has a limit here.

What exceeds it raises `RefusedError` with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sized

from torchft_x.errors import RefusedError

MAX_MEMBERS = 4096
"""Of a quorum. The largest jobs we know of run some hundred replica groups."""
MAX_TEXT = 4096
"""Characters of a name, address, digest or sentence. The longest honest one is a store address with its prefix."""
MAX_DATA = 64 << 10
"""Characters of a member's `data`, JSON written by users of the peer's client."""
MAX_RANKS = 16384
"""Group world size, and with it handles of a member."""
MAX_CARRIED = 256
"""Quorums a member says it was a carrier of; `core.commit.two_phase` keeps no more."""
MAX_FOLLOWED = 1024
"""Quorums before one that must be followed, too. Nearly always there is one; a row that nobody has received is far shorter."""
MAX_TOLD_VALUES = 64 * MAX_MEMBERS
"""Handles and carried quorums of all members of a quorum."""
MAX_NODES = 4096
"""Of one group."""
MAX_ATTEMPT = 2**31
"""Number of a life. A restart each second for 68 years."""


def check_count(values: Sized, what: str, limit: int) -> None:
    """Before anything is done with the entries of a list."""
    if len(values) > limit:
        raise RefusedError(f"A message was refused: {what} has {len(values)} entries, at most {limit} are allowed.")


def check_text(value: str, what: str, limit: int = MAX_TEXT) -> str:
    if len(value) > limit:
        raise RefusedError(f"A message was refused: {what} has {len(value)} characters, at most {limit} are allowed.")
    return value


def check_said(value: str, what: str, limit: int = MAX_TEXT) -> str:
    """A sentence or reason of somebody else's, for people: one line, without what would steer their terminal."""
    return clean(check_text(value, what, limit))


def check_plain(value: str, what: str, limit: int = MAX_TEXT) -> str:
    """A word that is said on in sentences."""
    if not value.isprintable():
        raise RefusedError(f"A message was refused: {what} holds unprintable characters.")
    return value if len(value) <= limit else check_text(value, what, limit)


def clean(value: str) -> str:
    """Line ends and tabs become spaces, what can't be printed question marks."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in value)


def check_texts(values: Collection[str], what: str, limit: int) -> tuple[str, ...]:
    if not values:
        return ()
    check_count(values, what, limit)
    return tuple([check_text(v, what) for v in values])


def check_whole(value: int, what: str, limit: int = 2**62) -> int:
    if not 0 <= value <= limit:
        raise RefusedError(f"A message was refused: {what} is {value}, it must lie between 0 and {limit}.")
    return value


def check_seconds(value: float, what: str) -> float:
    """A time from the wire: finite and not negative."""
    if not (math.isfinite(value) and value >= 0):
        raise RefusedError(f"A message was refused: {what} is {value}, it must be a number of seconds.")
    return value


def check_replica_id(value: str) -> str:
    """A replica id, group id or host name from the wire. It goes into logs, so it must be printable."""
    if not value or not value.isprintable():
        raise RefusedError(
            "A message was refused: a replica, group or host name is empty or holds unprintable characters."
        )
    return check_text(value, "a name", 512)


def check_heartbeat(value: float) -> float:
    """A heartbeat timeout someone else names, in seconds; kept within reason."""
    return min(max(check_seconds(value, "heartbeat timeout"), 0.05), 3600.0)
