"""Does a group hang, so that only an end of its processes helps? Pure: what is seen of them is given.

To leave a late group out of the quorum is cheap and early (core/lighthouse/stragglers.py). To end its processes throws away their
work, so it is late and needs evidence, all of it, for a while:

* no step, though the group neither waits for other groups nor has announced a pause;
* no process of it, children included, computes (or would, if there were a processor), reads or writes more than an
  idle one does;
* the training threads stand at the same place of their code, in stacks taken at the beginning and at the end.

An evaluation, a checkpoint, a compile or a slow data loader does one of these things. What does none of them and still
goes on (it waits for another program, say) should announce it: ``manager.planned_pause``. A limit that the user sets is
kept to whatever the processes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.timing import TIMING

POLLS = 1.0
"""Times in a second that a training thread wakes up by itself; one that hangs never does, or each few seconds."""
BUSY = 0.1
"""Of a core: whoever uses less does not compute. A trainer that waits uses a hundredth."""
STARVED = 0.5
"""Of the time one thread runs or is ready to: it computes, on a machine that has no processor for it. Threads that wake up now
and then are seldom ready for so long, however busy the machine is."""
MOVES = 1 << 20
"""Bytes read and written in a second; whoever moves fewer is not loading anything."""


@dataclass(frozen=True)
class Usage:
    """Of a group's processes on this node, with their children, since they began."""

    cpu: float  # seconds of a processor
    bytes: int  # read and written
    ready: Mapping[int, float]  # seconds for which each thread ran or was ready to
    turns: Mapping[int, int]  # times that each worker's first thread has left a processor


class Hangs:
    """Of one life of a group, on one node.

    Args:
        limit: seconds without a step after which the life is ended, whatever its processes do; None: by evidence.
        before: of the life before. A first step that does nothing for twice as long as any step of that life took hangs.
    """

    def __init__(self, limit: float | None = None, before: Hangs | None = None) -> None:
        self._limit = limit
        self._longest = 0.0  # seconds of a step, or of what was done between two; 0: nothing is known
        self._at_first = TIMING.hang_idle_at_first  # seconds for which a first step may do nothing
        if before is not None and before._longest:
            self._longest = before._longest
            self._at_first = min(self._at_first, max(TIMING.hang_idle, 2 * before._longest))
        self._last: tuple[float, Usage] | None = None  # the newest look
        self._since: float | None = None  # from when on the evidence holds; None: it does not
        self._turns: Mapping[int, int] = {}  # at that time, see `Usage`
        self._stacks: tuple[str, ...] = ()  # of the training threads, at the beginning of that time

    def __repr__(self) -> str:
        return f"<Hangs since={self._since}>"

    def wants_stacks(self, statuses: Sequence[Mapping[str, Any]], look: Callable[[], Usage], now: float) -> bool:
        """The workers of this node show these statuses. Whether `hangs` must be asked, with their stacks. `look` says what
        their processes have used; it is called only if they take no steps.

        Who has been at the same place, doing nothing, for long enough has been asked for its stacks twice.
        """
        if all(s.get("commits") for s in statuses):
            self._longest = max([self._longest, *(float(s.get("longest_step") or 0.0) for s in statuses)])
        quiet = min((float(s.get("step_seconds") or 0.0) for s in statuses), default=0.0) >= TIMING.hang_quiet
        if not quiet or _is_excused(statuses):
            self._last, self._since, self._stacks = None, None, ()
            return False
        usage = look()
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

    def hangs(self, stacks: Sequence[str]) -> bool:
        """Whether the training threads, whose stacks are these (empty: they can't be had), stand where they stood."""
        first, self._stacks = self._stacks, tuple(stacks)
        if not first:
            return False
        if first != self._stacks:
            self._since = None
        return first == self._stacks

    def is_over(self, statuses: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the limit that the user has set is over."""
        if self._limit is None or not statuses or _is_excused(statuses):
            return False
        return min(float(s.get("step_seconds") or 0.0) for s in statuses) >= self._limit

    def _has_moved(self, usage: Usage, now: float) -> bool:
        """Since the look before; True at the first."""
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
    """Whether the group takes no steps for a good reason: it waits for other groups, or has said that it pauses or ends.

    Ranks of a group whose other ranks wait for other groups may wait for those, in collectives that nobody sees. But a rank
    that asks for a quorum while another one of its group does not waits for that one.
    """
    waits = [s.get("phase") if s.get("waits") else "" for s in statuses]
    others = all(waits) or any(phase not in ("", "asking") for phase in waits)
    return others or any(s.get("paused") or s.get("leaving") for s in statuses)
