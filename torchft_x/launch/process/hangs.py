"""Detects a hung group, whose processes must be killed. Pure: the observations of the processes are given.

Leaving a late group out of the quorum is cheap and happens early (core/lighthouse/waiting.py). Killing its processes
throws away their work, so it happens late and requires all of this evidence for a while:

* no step, though the group neither waits for other groups nor has announced a pause;
* none of its processes, children included, computes (or is ready to compute), reads or writes more than an idle one does;
* the training threads are at the same place of their code, in stacks taken at the beginning and at the end.

An evaluation, a checkpoint, a compile or a slow data loader computes, reads, writes or moves on in its code. A script that
does none of these and still makes progress (because it waits for another program, say) should announce it with
``manager.planned_pause``. A limit that the user sets applies whatever the processes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.timing import TIMING

POLLS = 1.0
"""Wake-ups per second above which a training thread polls. A hung thread never wakes up, or only every few seconds."""
BUSY = 0.1
"""Fraction of a core below which a group does not compute. A trainer that waits uses a hundredth of a core."""
STARVED = 0.5
"""Fraction of the time for which one thread runs or is ready to run, above which it computes, on a machine without a free
processor. Threads that wake up now and then are seldom ready for so long, however busy the machine is."""
MOVES = 1 << 20
"""Bytes read and written per second below which a group loads no data."""


@dataclass(frozen=True)
class Usage:
    """Resources used by a group's processes on this node and their children, since they started."""

    cpu: float  # CPU seconds
    bytes: int  # read and written
    ready: Mapping[int, float]  # thread id -> seconds for which it ran or was ready to run
    turns: Mapping[int, int]  # worker -> context switches of its first thread


class HangDetector:
    """Hang detection for one attempt of a group, on one node.

    Args:
        limit: seconds without a step after which the attempt is killed, even if it is busy; None to decide by evidence.
        before: the detection of the attempt before. A first step hangs if it is idle for twice as long as that
            attempt's longest step (but at least `TIMING.hang_idle`, at most `TIMING.hang_idle_at_first` seconds).
    """

    def __init__(self, limit: float | None = None, before: HangDetector | None = None) -> None:
        self._limit = limit
        self._longest = 0.0  # seconds of the longest step, or of the work between two; 0 if none is known
        self._at_first = TIMING.hang_idle_at_first  # seconds for which a first step may be idle
        if before is not None and before._longest:
            self._longest = before._longest
            self._at_first = min(self._at_first, max(TIMING.hang_idle, 2 * before._longest))
        self._last: tuple[float, Usage] | None = None  # time and usage of the newest observation
        self._since: float | None = None  # time since which the evidence holds; None while it does not
        self._turns: Mapping[int, int] = {}  # `Usage.turns` at that time
        self._stacks: tuple[str, ...] = ()  # stacks of the training threads, taken last

    def __repr__(self) -> str:
        return f"<HangDetector since={self._since}>"

    def wants_stacks(self, statuses: Sequence[Mapping[str, Any]], poll: Callable[[], Usage], now: float) -> bool:
        """Take the statuses of this node's workers, and return whether `is_hung` must be called with their stacks.

        `poll` returns the usage of their processes, and is called only if they take no steps. Stacks are wanted twice: when
        the workers become idle, and when they have been idle for long enough.
        """
        if all(s.get("commits") for s in statuses):
            self._longest = max([self._longest, *(float(s.get("longest_step") or 0.0) for s in statuses)])
        quiet = min((float(s.get("step_seconds") or 0.0) for s in statuses), default=0.0) >= TIMING.hang_quiet
        if not quiet or _is_excused(statuses):
            self._last, self._since, self._stacks = None, None, ()
            return False
        usage = poll()
        moved = self._has_moved(usage, now)
        self._last = (now, usage)
        if moved:
            self._since, self._stacks = None, ()
            return False
        if self._since is None:
            self._since, self._turns = now, usage.turns
        turns = max((n - self._turns.get(worker, n) for worker, n in usage.turns.items()), default=0)
        polls = turns > POLLS * (now - self._since)
        if polls:
            idle = TIMING.hang_idle_at_first
        else:
            idle = TIMING.hang_idle if all(s.get("commits") for s in statuses) else self._at_first
        return not self._stacks or now - self._since >= idle

    def is_hung(self, stacks: Sequence[str]) -> bool:
        """Return whether the training threads' stacks are the same as those of the call before.

        Pass no stacks if they can't be obtained.
        """
        first, self._stacks = self._stacks, tuple(stacks)
        if not first:
            return False
        if first != self._stacks:
            self._since = None
        return first == self._stacks

    def limit_passed(self, statuses: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the group has taken no step for longer than the user's limit."""
        if self._limit is None or not statuses or _is_excused(statuses):
            return False
        return min(float(s.get("step_seconds") or 0.0) for s in statuses) >= self._limit

    def _has_moved(self, usage: Usage, now: float) -> bool:
        """Return whether the processes have done work since the observation before. The first observation counts as work."""
        if self._last is None:
            return True
        then, before = self._last
        seconds = max(now - then, 1e-3)
        ready = max((t - before.ready.get(thread, t) for thread, t in usage.ready.items()), default=0.0)
        return (
            usage.cpu - before.cpu > BUSY * seconds
            or ready > STARVED * seconds
            or usage.bytes - before.bytes > MOVES * seconds
        )


def _is_excused(statuses: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the group has a good reason to take no steps: it waits for other groups, or announced a pause or its end.

    If some ranks wait for other groups, the rest of the group may wait for those ranks in collectives that are not visible
    here. But a rank that asks for a quorum while another one of its group does not is waiting for that one.
    """
    waits = [s.get("phase") if s.get("waits") else "" for s in statuses]
    others = all(waits) or any(phase not in ("", "asking") for phase in waits)
    return others or any(s.get("paused") or s.get("leaving") for s in statuses)
