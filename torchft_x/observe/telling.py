"""What a group tells the lighthouse of itself (`core.view.facts`), out of the events of its rank 0.

`hear` is on the training thread, once a step: it keeps the event and looks at two of its fields. All else is done when the
group server asks for it (`take`), a few times a second at the most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any

from torchft_x.core.types import readable
from torchft_x.core.view.facts import (
    BOUNDS,
    COMMITTED,
    HEALED,
    MOST_MOMENTS,
    NOTHING,
    RELEASED,
    RESTARTED,
    Copy,
    Counted,
    Facts,
    Moment,
    copying,
)

TOLD = frozenset(["commit", "drop", "abort", "joined", "heal_begin", "heal_end", "error", "quorum"])
"""Events that are heard."""
_LONG, _EACH = 2.0, 5.0  # seconds of a copy until a line is said, and between two of them
_MOST = 1 << 16  # events that are kept while nobody takes them: the lighthouse is away


class Telling:
    """Events of one rank. `received`: of the state that is copied now, the bytes that have come and those that will; None:
    nobody knows. `say`: is given a line for people now and then, while a copy takes long."""

    def __init__(
        self, received: Callable[[], tuple[int, int] | None], say: Callable[[str], object] = lambda _: None
    ) -> None:
        self.urgent = False  # a copy goes on, or there is a moment that is not told
        self._received = received
        self._heard: deque[dict[str, Any]] = deque(maxlen=_MOST)  # appended on any thread, taken on one
        self._newest: tuple[Any, Any] = (None, None)  # quorum and participants of the newest commit
        self._told: tuple[Any, Any] = (None, None)  # the same, of those that were taken
        self._last = 0.0  # when that was; 0.0: none
        self._copying: tuple[str, float] | None = None  # from whom, and since when
        self._say = say
        self._say_at = 0.0  # seconds of the copy after which the next line is due

    def hear(self, event: dict[str, Any]) -> None:
        """One of `TOLD`."""
        self._heard.append(event)
        if event["event"] == "commit":
            now = (event.get("quorum"), event.get("participants"))
            if now == self._newest:
                return
            self._newest = now
        self.urgent = True

    def take(self, now: float) -> Facts | None:
        """What is new since the last call; None: nothing. `now`: monotonic seconds."""
        self.urgent = False
        durations: dict[str, _Counts] = {name: _Counts() for name in ("steps", "reductions", "heals")}
        moments: list[Moment] = []
        commits = drops = 0
        while self._heard:
            event = self._heard.popleft()
            name, at = event["event"], float(event["mono"])
            ago = max(0.0, now - at)
            if name == "commit":
                commits += 1
                durations["steps"].add(event.get("duration"))
                durations["reductions"].add(event.get("reduction"))
                moments += self._committed(event, at, ago)
            elif name == "drop":
                drops += 1
            elif name == "abort":
                moments.append(Moment(what=RELEASED, quorum=int(event.get("quorum") or 0), ago=ago))
            elif name == "joined":
                moments.append(Moment(what=RESTARTED, ago=ago))
            elif name == "heal_begin":
                self._copying, self._say_at = (str(event.get("source") or ""), at), _LONG
            elif self._copying is not None:  # what goes on is over: well, or not
                self._copying = None
                if name == "heal_end":
                    durations["heals"].add(event.get("duration"))
                    moments.append(Moment(what=HEALED, ago=ago, took=float(event.get("duration") or 0.0)))
        facts = Facts(
            commits=commits,
            drops=drops,
            steps=durations["steps"].counted(),
            reductions=durations["reductions"].counted(),
            heals=durations["heals"].counted(),
            moments=tuple(moments[-MOST_MOMENTS:]),
            copy=self._copy(now),
        )
        self.urgent = self.urgent or self._copying is not None
        return None if facts == NOTHING else facts

    def _committed(self, event: dict[str, Any], at: float, ago: float) -> list[Moment]:
        """Of the first in a quorum, and where others contribute than before."""
        last, self._last = self._last, at
        kind = (event.get("quorum"), event.get("participants"))
        if kind == self._told:
            return []
        self._told = kind
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


class _Counts:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float | None) -> None:
        if seconds is not None:
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._sum += seconds

    def counted(self) -> Counted:
        used = max((i + 1 for i, count in enumerate(self._counts) if count), default=0)
        return Counted(tuple(self._counts[:used]), self._sum)
