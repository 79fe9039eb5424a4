"""Collector of the facts that a group sends to the lighthouse (`observe.view.facts`), from the events of its rank 0.

`receive` runs on the training thread, once a step: it keeps the event and reads two of its fields. All other work is done
when the group server calls `take`, a few times a second at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from torchft_x.core.types import readable
from torchft_x.observe.view.facts import (
    BOUNDS,
    COMMITTED,
    HEALED,
    MOST_MOMENTS,
    NOTHING,
    RELEASED,
    RESTARTED,
    Copy,
    Counted,
    Durations,
    Facts,
    Moment,
    copying,
)
from torchft_x.observe.view.speed import STEPS

TOLD = frozenset(["commit", "drop", "abort", "joined", "heal_begin", "heal_end", "error", "quorum"])
"""Events that are collected."""
_LONG, _EACH = 2.0, 5.0  # seconds of a copy until its first line for people, and between two lines
_MOST = 1 << 16  # events that are kept while `take` is not called, because the lighthouse is away


class FactsCollector:
    """Collector of one rank's events.

    `received` returns the received and total bytes of a copy, or None. During a long copy, `say` gets lines for people.
    """

    def __init__(
        self, received: Callable[[], tuple[int, int] | None], say: Callable[[str], object] = lambda _: None
    ) -> None:
        self.urgent = False  # a state is being copied, or a moment was not taken yet
        self._received = received
        self._heard: deque[dict[str, Any]] = deque(maxlen=_MOST)  # appended on any thread, taken on one
        self._newest: tuple[Any, Any] = (None, None)  # quorum and participants of the newest commit
        # Quorum and participants of the newest commit that was taken.
        self._newest_commit: tuple[Any, Any] = (None, None)
        self._last = 0.0  # time of that commit (monotonic); 0.0: none
        self._own_parts: deque[float] = deque(maxlen=STEPS)  # seconds of this rank's own part of its newest steps
        self._copying: tuple[str, float] | None = None  # source and start (monotonic) of the copy
        self._say = say
        self._say_at = 0.0  # seconds of the copy after which the next line is due

    def receive(self, event: dict[str, Any]) -> None:
        """Keep an event if it is one of `TOLD`."""
        if event["event"] not in TOLD:
            return
        self._heard.append(event)
        if event["event"] == "commit":
            now = (event.get("quorum"), event.get("participants"))
            if now == self._newest:
                return
            self._newest = now
        self.urgent = True

    def take(self, now: float) -> Facts | None:
        """Return the facts since the last call, or None. `now`: monotonic seconds."""
        self.urgent = False
        steps, reductions, heals = Durations(BOUNDS), Durations(BOUNDS), Durations(BOUNDS)
        moments: list[Moment] = []
        commits = drops = 0
        while self._heard:
            event = self._heard.popleft()
            name, at = event["event"], float(event["mono"])
            ago = max(0.0, now - at)
            if name == "commit":
                commits += 1
                steps.add(event.get("duration"))
                reductions.add(event.get("reduction"))
                self._own_parts.append(float(event.get("own_part") or 0.0))
                moments += self._committed(event, at, ago)
            elif name == "drop":
                drops += 1
            elif name == "abort":
                moments.append(Moment(what=RELEASED, quorum=int(event.get("quorum") or 0), ago=ago))
            elif name == "joined":
                moments.append(Moment(what=RESTARTED, ago=ago))
            elif name == "heal_begin":
                self._copying, self._say_at = (str(event.get("source") or ""), at), _LONG
            elif self._copying is not None:  # the copy has ended, well or not
                self._copying = None
                if name == "heal_end":
                    heals.add(event.get("duration"))
                    moments.append(Moment(what=HEALED, ago=ago, took=float(event.get("duration") or 0.0)))
        facts = Facts(
            commits=commits,
            drops=drops,
            steps=_counted(steps),
            reductions=_counted(reductions),
            heals=_counted(heals),
            moments=tuple(moments[-MOST_MOMENTS:]),
            copy=self._copy(now),
            own_part=median(self._own_parts) if commits and len(self._own_parts) == STEPS else 0.0,
        )
        self.urgent = self.urgent or self._copying is not None
        return None if facts == NOTHING else facts

    def _committed(self, event: dict[str, Any], at: float, ago: float) -> list[Moment]:
        """Return the moment of a commit that is its quorum's first, or has other participants than the one before."""
        last, self._last = self._last, at
        kind = (event.get("quorum"), event.get("participants"))
        if kind == self._newest_commit:
            return []
        self._newest_commit = kind
        took = max(0.0, at - last) if last else 0.0
        quorum, participants = (int(value or 0) for value in kind)
        return [Moment(what=COMMITTED, quorum=quorum, participants=participants, ago=ago, took=took)]

    def _copy(self, now: float) -> Copy | None:
        if self._copying is None:
            return None
        source, since = self._copying
        done, total = self._received() or (0, 0)
        copy = Copy(source, done, total, max(0.0, now - since))
        if copy.took >= self._say_at:
            self._say_at = copy.took + _EACH
            self._say(f"it {readable(copying(copy))}")
        return copy


def _counted(durations: Durations) -> Counted:
    used = max((i + 1 for i, count in enumerate(durations.counts) if count), default=0)
    return Counted(tuple(durations.counts[:used]), durations.sum)
