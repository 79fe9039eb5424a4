"""Detects processes that are stopped, stalled or hung. Pure: the observations of the processes are given.

A hung group is killed. Leaving a late group out of the quorum is cheap and happens early (core/lighthouse/waiting.py). Killing its processes
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

STOPPED = ("T", "t")
"""States in /proc/PID/stat: stopped by a signal, stopped by a tracer."""
POLLS = 1.0
"""Wake-ups per second above which a training thread polls. A hung thread never wakes up, or only every few seconds."""
BUSY = 0.1
"""Fraction of a core below which a group does not compute. A trainer that waits uses a hundredth of a core."""
STARVED = 0.5
"""Fraction of the time for which one thread runs or is ready to run, above which it computes, on a machine without a free
processor. Threads that wake up now and then are seldom ready for so long, however busy the machine is."""
MOVES = 1 << 20
"""Bytes read and written per second below which a group loads no data."""
_TIMES = 5.0  # limit as a multiple of the longest step of this attempt
_OF_TIMEOUT = 0.75  # part of a collective's timeout, after which the stacks and the collectives in flight are gone


class StoppedProcesses:
    """Times for which an attempt's processes have been seen stopped, from periodic observations.

    The observer itself may not have run for a while; such a gap counts for at most `TIMING.stop_gap` seconds.
    """

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}  # rank -> seconds it has been seen stopped
        self._turns: Mapping[int, int] = {}  # context switches of the stopped ranks at the last observation
        self._looked: float | None = None  # monotonic time of the last observation, in seconds
        self._reported: int | None = None  # rank last reported as stopped

    def poll(self, stopped: Mapping[int, int], now: float) -> tuple[int | None, float] | None:
        """Take an observation of the stopped ranks, and return a report if it has changed.

        `stopped` maps each rank that is stopped at `now` to its count of context switches: a rank whose count has grown
        since the last observation ran in between. The report is a rank and the seconds for which it has been stopped, or
        (None, 0.0) once no rank is.
        """
        gap = 0.0 if self._looked is None else min(now - self._looked, TIMING.stop_gap)
        self._looked = now
        still = {r for r, turns in stopped.items() if self._turns.get(r) == turns}
        self._stopped = {r: self._stopped[r] + gap if r in still else 0.0 for r in stopped}
        self._turns = stopped
        worst = max(self._stopped, key=lambda r: self._stopped[r], default=None)
        if self._reported in still:
            return None
        if worst is not None and self._stopped[worst] >= TIMING.stop_report:
            self._reported = worst
            return worst, self._stopped[worst]
        if self._reported is None:
            return None
        self._reported = None
        return None, 0.0


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


def step_limit(status: Mapping[str, Any]) -> float:
    """Return the seconds that this worker's step may take, derived from its longest step.

    The collective's timeout limits the result, except that twice the longest step is always allowed. Before the first
    commit only the timeout counts, because the first step compiles and loads. For a group that trains apart, the inner
    steps count, during which no timeout runs.
    """
    longest = float(status.get("longest_step") or 0.0)
    if status.get("apart") and status.get("phase") == "idle":
        return max(TIMING.stall_apart, _TIMES * longest)
    latest = _OF_TIMEOUT * float(status.get("timeout") or 60.0)
    if not status.get("commits"):
        return latest
    return max(2 * longest, min(max(TIMING.stall_usual, _TIMES * longest), latest))


def is_stalled(status: Mapping[str, Any]) -> bool:
    """Return whether the worker's step exceeds `step_limit`. A worker that waits for a quorum, pauses or has left is not stalled."""
    if status.get("paused") or status.get("leaving") or status.get("phase") == "asking":
        return False
    if not status.get("commits") and status.get("phase") == "idle":
        return False  # training has not begun
    return float(status.get("step_seconds") or 0.0) > step_limit(status)
