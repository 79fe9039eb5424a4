"""A worker's status, as bytes that its supervisor reads from shared memory while the worker goes on. Pure.

There are two kinds of record. Each has two places that are written alternately, so that the former record stays whole
while the next one is written, even if the writer dies in the middle of a store::

    0     moment 0   changes several times a step: fixed fields between two copies of the record's number
    128   moment 1
    256   story 0    changes with a quorum or an error: number, length, CRC-32, JSON
    ...   story 1

A moment is written by one `MOMENT.pack_into` (0.2 microseconds). A reader in the middle of a store sees two numbers
that differ. If the machine shows stores in another order, a second read sees other bytes (`same`). Every record is
checked before it is used: no length beyond its place, no unknown phase.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

MOMENT = struct.Struct("<QQBdddQQQBBQ")
"""Layout of a moment: number, the fields of `Moment`, and the number again."""
PHASES = ("idle", "asking", "running", "voting")
"""Phases of `core.commit.step`, by their number in a record (a test compares them)."""
_STORY = struct.Struct("<QII")  # number, length in bytes, CRC-32 of number, length and text
_PLACE = 128  # bytes of a moment's place
MOMENTS = 2 * _PLACE
"""Bytes of both moments' places, which come first."""
_STORY_PLACE = 16384
SIZE = MOMENTS + 2 * _STORY_PLACE
"""Bytes of the shared memory."""
_TEXT = 2000  # characters that are kept of a text
_MEMBERS = 200  # replica ids that are kept; the dumps need their groups' names


class Moment(NamedTuple):
    """A worker's position in its training. Times are seconds of this host's monotonic clock."""

    step: int
    phase: int  # index in PHASES
    since: float  # start of the present step, which is the end of the one before
    longest: float  # seconds of its longest step, or of its longest time between two steps
    pause_ends: float  # end of an announced pause; 0: none
    commits: int  # number of commits in this attempt
    quorum: int
    participants: int
    leaving: bool  # the process ends, and must not be asked for a dump
    waits: bool = False  # it waits for other groups: in a reduction, in a vote or for a quorum


def place_of_moment(number: int) -> int:
    """Return the offset of the moment with this number; numbers begin at 1."""
    return (number & 1) * _PLACE


def encode_story(number: int, values: Mapping[str, Any]) -> tuple[int, bytes]:
    """Encode a story, without its least important entries if it is too long, and return its offset and bytes."""
    cut = {key: value[:_TEXT] if isinstance(value, str) else value for key, value in values.items()}
    cut["members"] = list(cut.get("members") or ())[:_MEMBERS]
    text = b""
    for drop in ((), ("story",), ("story", "members"), ("story", "members", "error")):
        text = json.dumps({k: v for k, v in cut.items() if k not in drop}, default=str).encode()
        if len(text) <= _STORY_PLACE - _STORY.size:
            break
    else:
        text = b"{}"
    head = _STORY.pack(number, len(text), _sum(number, text))
    return MOMENTS + (number & 1) * _STORY_PLACE, head + text


def _sum(number: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(struct.pack("<QI", number, len(text))))


def newest(data: bytes) -> tuple[int, Moment] | None:
    """Return the newest moment and its number, or None if neither place holds a whole one."""
    found = [read for at in (0, _PLACE) if (read := _moment(data, at)) is not None]
    return max(found, default=None)


def _moment(data: bytes, at: int) -> tuple[int, Moment] | None:
    if len(data) < at + MOMENT.size:
        return None
    number, step, phase, since, longest, pause_ends, *counts, leaving, waits, again = MOMENT.unpack_from(data, at)
    times = (since, longest, pause_ends)
    if number == 0 or number != again or phase >= len(PHASES) or not all(map(math.isfinite, times)):
        return None
    commits, quorum, participants = counts
    return number, Moment(step, phase, *times, commits, quorum, participants, bool(leaving), bool(waits))


def same(read: tuple[int, Moment], later: bytes) -> bool:
    """Return whether a second, later read shows the same moment in its place."""
    return _moment(later, place_of_moment(read[0])) == read


def story(data: bytes) -> dict[str, Any]:
    """Return the newest whole story, or {}."""
    best: tuple[int, dict[str, Any]] = (0, {})
    for at in (MOMENTS, MOMENTS + _STORY_PLACE):
        if len(data) < at + _STORY.size:
            continue
        number, length, check = _STORY.unpack_from(data, at)
        text = data[at + _STORY.size : at + _STORY.size + length]
        if length > _STORY_PLACE - _STORY.size or number <= best[0] or _sum(number, text) != check:
            continue
        value = _json(text)
        if value is not None:
            best = (number, value)
    return best[1]


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def status_of(moment: Moment, values: Mapping[str, Any], now: float, t: float) -> dict[str, Any]:
    """Combine a moment and a story into a status (docs/operate.md), at monotonic `now` and unix `t`, in seconds."""
    return {
        **values,
        "t": t,
        "step": moment.step,
        "phase": PHASES[moment.phase],
        "step_seconds": round(max(0.0, now - moment.since), 3),
        "longest_step": round(moment.longest, 3),
        "commits": moment.commits,
        "paused": now < moment.pause_ends,
        "quorum": moment.quorum,
        "participants": moment.participants,
        "leaving": moment.leaving,
        "waits": moment.waits,
    }
