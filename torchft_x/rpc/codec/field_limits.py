"""Limits on arriving values, by field name of `core`'s dataclasses. Codecs override those of other meaning.

A single number, time or text that is not named here has the usual limit of its kind, `USUAL`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torchft_x.core.types import JoinReason, Ranges
from torchft_x.errors import RefusedError
from torchft_x.rpc.transport.limits import (
    MAX_ATTEMPT,
    MAX_CARRIED,
    MAX_DATA,
    MAX_HELD,
    MAX_MEMBERS,
    MAX_RANKS,
    MAX_SLOTS,
    MAX_WEIGHT,
    check_count,
    check_name,
    check_plain,
    check_said,
    check_seconds,
    check_text,
    check_texts,
    check_whole,
    clean,
)

Convert = Callable[[Any], Any]
Limit = Convert | tuple[Any, ...] | None
"""Converts an arrived value, or raises `RefusedError`. A tuple holds the function and its further arguments. None
accepts every value."""


def reason_to_join(value: str) -> JoinReason:
    """Convert a join's reason. An empty string is the usual reason, `BOUNDARY`."""
    try:
        return JoinReason(value) if value else JoinReason.BOUNDARY
    except ValueError:
        shown = check_text(value, "reason", 64)
        raise RefusedError(f"A message was refused: {shown!r} is no reason to join.") from None


def _carried(values: Sequence[int]) -> tuple[int, ...]:
    if len(values) > MAX_CARRIED:
        raise RefusedError(
            f"A message was refused: a member was a carrier of {len(values)} quorums, at most {MAX_CARRIED} are allowed."
        )
    return tuple([check_whole(q, "carried quorum") for q in values]) if values else ()


def _held(values: Sequence[int]) -> Ranges:
    """Read slots, which are sent as from, to, from, to ... in strictly rising order. Raises `RefusedError`."""
    if not values:
        return ()
    check_count(values, "held slots", MAX_HELD)
    known = [check_whole(v, "held slot", MAX_SLOTS) for v in values]
    if len(known) % 2 or any(low >= high for low, high in itertools.pairwise(known)):
        raise RefusedError("A message was refused: the held slots are no ranges in rising order.")
    return tuple(zip(known[::2], known[1::2], strict=True))


def check_token(value: str) -> str:
    """Check the token of an attempt that a supervisor is told to start or to end. Raises `RefusedError`."""
    if not value:
        raise RefusedError("A message was refused: the attempt token is empty.")
    return check_text(value, "attempt token", 512)


LIMITS: dict[str, Limit] = {
    "address": (check_plain, "address"),
    "attempt": (check_whole, "attempt", MAX_ATTEMPT),
    "attempt_token": (check_text, "attempt token", 512),
    "boot_id": (check_text, "boot id", 128),
    "by": (check_said, "fenced by"),
    "carried": _carried,
    "code": None,  # exit code of a process
    "data": (check_text, "data", MAX_DATA),
    "digest": None,
    "handles": (check_texts, "handles", MAX_RANKS),
    "held": _held,
    "library": (check_plain, "library", 128),
    "lost": lambda values: tuple(map(clean, check_texts(values, "lost", MAX_MEMBERS))),
    "patience": lambda value: check_seconds(value, "patience_s") or math.inf,  # for ever is 0 on the wire
    "rank": (check_whole, "group rank", MAX_RANKS),
    "reason": (check_said, "reason"),
    "replica_id": check_name,
    "sentence": (check_said, "sentence"),
    "suspects": (check_texts, "suspects", MAX_MEMBERS),
    "token": (check_text, "attempt token", 512),
    "unreached": (check_texts, "unreached", MAX_MEMBERS),
    "weight": lambda value: check_whole(value, "weight", MAX_WEIGHT) or 1,
    "world_size": (check_whole, "world size", MAX_RANKS),
}
USUAL: dict[type, Callable[[Any, str], Any]] = {int: check_whole, float: check_seconds, str: check_text}
"""Limits of single values without an entry above, by type: functions of the value and the field's name."""
WRITERS: dict[str, Convert] = {
    "held": lambda value: [n for pair in value for n in pair],
    "patience": lambda value: 0.0 if value == math.inf else value,
    "weight": lambda value: 0 if value == 1 else value,
}
"""Conversions of fields that are not sent as they are, by field name."""
