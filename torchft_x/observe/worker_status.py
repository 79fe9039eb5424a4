"""Where a worker is, as bytes that its supervisor reads from shared memory while the worker goes on. Pure.

Two kinds of record, each in two places that are written in turn, so that a reader (or the death of the writer, in the
middle of a store) always leaves the one before whole::

    0     moment 0   what changes several times a step: fixed fields, its number in front and behind
    128   moment 1
    256   story 0    what changes with a quorum or an error: number, length, CRC-32, JSON
    ...   story 1

A moment is written by one `MOMENT.pack_into` (0.2 microseconds). Who reads one in the middle of a store sees two
numbers that differ; should the machine show stores in another order than they were made, a second look sees other bytes
(`same`). Nothing in a record is believed before it is checked: no length beyond its place, no phase that we don't know.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

MOMENT = struct.Struct("<QQBdddQQQBBQ")
"""Number, the fields of `Moment`, number again."""
PHASES = ("idle", "asking", "running", "voting")
"""core.commit.step's, by the number in a record (a test compares them)."""
_STORY = struct.Struct("<QII")  # number, length in bytes, CRC-32 of number, length and text
_PLACE = 128  # bytes of a moment's
MOMENTS = 2 * _PLACE
"""Bytes from the beginning in which the moments are."""
_STORY_PLACE = 16384
SIZE = MOMENTS + 2 * _STORY_PLACE
"""Bytes of the whole."""
_TEXT = 2000  # characters of a reason that are kept
_MEMBERS = 200  # replica ids that are kept; the dumps need their groups' names


class Moment(NamedTuple):
    """Times are those of this host's monotonic clock, in seconds."""

    step: int
    phase: int  # in PHASES
    since: float  # when the step in hand began: the end of the one before
    longest: float  # seconds of its longest step, or of what it did between two
    pause_ends: float  # of an announced pause; 0: none
    commits: int  # in this life
    quorum: int
    participants: int
    leaving: bool  # it ends: nobody must ask it anything
    waits: bool = False  # for other groups, in a reduction, a vote or for a quorum


def place_of_moment(number: int) -> int:
    """Offset at which the moment of that number (they count from 1) is written."""
    return (number & 1) * _PLACE


def encode_story(number: int, values: Mapping[str, Any]) -> tuple[int, bytes]:
    """Offset and bytes. What is too long is cut: the group's story first, then members, then everything but the shortest."""
    cut = {key: value[:_TEXT] if isinstance(value, str) else value for key, value in values.items()}
    cut["members"] = list(cut.get("members") or ())[:_MEMBERS]
    text = b""
    for drop in ((), ("story",), ("story", "members"), ("story", "members", "lost", "error")):
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
    """Number and moment; None: there is none, or both are being written."""
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
    """Whether a second look, after the first, shows the same bytes in that moment's place."""
    return _moment(later, place_of_moment(read[0])) == read


def story(data: bytes) -> dict[str, Any]:
    """The newest that is whole; {}: none."""
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


def tell(moment: Moment, values: Mapping[str, Any], now: float, t: float) -> dict[str, Any]:
    """Both as one status, at the time `now` on the monotonic clock and `t` since 1970: see docs/debugging.md."""
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
