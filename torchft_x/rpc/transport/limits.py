"""Limits on every text, list and number that arrives, because nothing that arrives is trusted.

A value that exceeds its limit raises `RefusedError` with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sized

from torchft_x.errors import RefusedError

MAX_MEMBERS = 4096
"""Members of a quorum. The largest jobs we know of run some hundred replica groups."""
MAX_TEXT = 4096
"""Characters of a name, address, digest or sentence. The longest legitimate one is a store address with its prefix."""
MAX_DATA = 64 << 10
"""Characters of a member's `data`: JSON written by users of torchft's client."""
MAX_RANKS = 16384
"""Ranks of a group, and so handles of a member."""
MAX_CARRIED = 256
"""Quorums that a member claims to have been a carrier of; `core.commit.two_phase` keeps no more."""
MAX_SLOTS = 1 << 24
"""Slots of a step."""
MAX_HELD = 256
"""Numbers that name the ranges of slots a member holds. One range is usual; each loss in the same step may add one."""
MAX_WEIGHT = 1 << 16
"""Weight of a member in the sharing of slots."""
MAX_FOLLOWED = 1024
"""Open quorums before a quorum. There is nearly always one; even a row of quorums that no member received is far
shorter."""
MAX_TOLD_VALUES = 64 * MAX_MEMBERS
"""Handles, carried quorums and held slots of all members of a quorum."""
MAX_NODES = 4096
"""Nodes of one group."""
MAX_ATTEMPT = 2**31
"""Number of an attempt. A restart every second would reach it after 68 years."""


def check_count(values: Sized, what: str, limit: int) -> None:
    """Raise `RefusedError` if a list has more than `limit` entries. Call it before any entry is processed."""
    if len(values) > limit:
        raise RefusedError(f"A message was refused: {what} has {len(values)} entries, at most {limit} are allowed.")


def check_text(value: str, what: str, limit: int = MAX_TEXT) -> str:
    if len(value) > limit:
        raise RefusedError(f"A message was refused: {what} has {len(value)} characters, at most {limit} are allowed.")
    return value


def check_said(value: str, what: str, limit: int = MAX_TEXT) -> str:
    """Return a sentence from the wire as one line without terminal control characters. Raises `RefusedError`."""
    return clean(check_text(value, what, limit))


def check_plain(value: str, what: str, limit: int = MAX_TEXT) -> str:
    """Check a word from the wire that becomes part of our sentences: it must be printable. Raises `RefusedError`."""
    if not value.isprintable():
        raise RefusedError(f"A message was refused: {what} holds unprintable characters.")
    return value if len(value) <= limit else check_text(value, what, limit)


def clean(value: str) -> str:
    """Replace line ends and tabs with spaces, and other unprintable characters with question marks."""
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
    """Check a time from the wire, in seconds: it must be finite and not negative. Raises `RefusedError`."""
    if not (math.isfinite(value) and value >= 0):
        raise RefusedError(f"A message was refused: {what} is {value}, it must be a number of seconds.")
    return value


def check_name(value: str, what: str = "a replica, group or host name", limit: int = 512) -> str:
    """Check a name from the wire, which must be printable, for logs. Raises `RefusedError`."""
    if not value or not value.isprintable():
        raise RefusedError(f"A message was refused: {what} is empty or holds unprintable characters.")
    return check_text(value, what, limit)


def check_heartbeat(value: float) -> float:
    """Clamp a heartbeat timeout from the wire to 0.05 to 3600 seconds. Raises `RefusedError`."""
    return min(max(check_seconds(value, "heartbeat timeout"), 0.05), 3600.0)
