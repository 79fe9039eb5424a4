"""Record of a lighthouse for people: its history, and the overview as bytes that all readers share.

Used on the loop's thread. Readers cost the lighthouse at most one fiftieth of its time: an overview that took long to
make is shown for longer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from torchft_x._version import __version__
from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.messages.job import AttemptExited, GroupRests, RosterEvent
from torchft_x.observe.view.attempts import AttemptTable
from torchft_x.observe.view.facts import Copy, Facts, Tally
from torchft_x.observe.view.history import History
from torchft_x.observe.view.overview import Job, overview
from torchft_x.observe.view.speed import SlowGroups, StepRate
from torchft_x.timing import POLL_SLOW

FRESH = 0.5
"""Seconds for which an overview is shown, at least."""
_SHARE = 50  # an overview is shown for at least this many times the time that it took to make
_COPY_FRESH = 5.0  # seconds for which a member's report on its copy counts


class Recorder:
    """Collector of history, facts and the overview. `job` returns the supervisors' part of the overview."""

    def __init__(self, machine: Lighthouse, job: Callable[[], Job]) -> None:
        self._machine = machine
        self._job = job
        self.history = History()
        self.attempts = AttemptTable()
        self.tally = Tally()
        self._copies: dict[str, tuple[float, Copy]] = {}  # by replica id: time of the report (monotonic), the copy
        self._own_parts: dict[str, float] = {}  # by replica id: newest report of its own part of a step, in seconds
        self._slow = SlowGroups()
        self.job = ""  # the job's name; '': unknown
        self.address = ""  # the lighthouse's address; '' until it serves
        self.page = ""  # URL of the page; '': there is none
        self.orders = False  # the lighthouse has a token, so it takes orders
        self._rate = StepRate()
        self._looked = float("-inf")  # when the step was last sampled (monotonic)
        self._stale = float("-inf")  # when the overview must be made anew (monotonic)
        self._value: dict[str, Any] = {}  # the overview
        self._bytes = b""  # the overview as JSON
        self._began = time.monotonic()
        if machine.current is not None:  # the quorum was taken over from the lighthouse before this one
            self.history.took_over(machine.current)

    # --- what happens -------------------------------------------------------------------------------------------------

    def receive(self, event: RosterEvent) -> None:
        """Record a supervisor's report."""
        self.attempts.receive(event)
        if isinstance(event, AttemptExited):
            self.history.exited(event.group, event.reason, time.time())
        elif isinstance(event, GroupRests):
            self._stale = float("-inf")

    def record_moments(self, replica_id: str, facts: Facts) -> None:
        """Record a member's facts about itself."""
        self.tally.add(facts)
        if facts.own_part:
            self._own_parts[replica_id] = facts.own_part
        if facts.moments:
            self.history.record_moments(replica_id, facts.moments, time.time())
        if facts.copy is not None:
            self._copies[replica_id] = (time.monotonic(), facts.copy)
        else:
            self._copies.pop(replica_id, None)

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._looked >= POLL_SLOW and self._machine.current is not None:  # without a quorum no step is known
            self._looked = now
            self._rate.at(self._machine.reached, now)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def value(self) -> dict[str, Any]:
        """Return the overview, which the caller must not change."""
        self._refresh()
        return self._value

    def bytes(self) -> bytes:
        """Return the overview as JSON."""
        self._refresh()
        return self._bytes

    def _refresh(self) -> None:
        began = time.monotonic()
        if began < self._stale:
            return
        self._value, self._bytes = {}, b""  # freed first: this process would keep the memory of two overviews for good
        self._copies = {who: known for who, known in self._copies.items() if began - known[0] < _COPY_FRESH}
        view = self._machine.view(began)
        present = {m.replica_id for m in view.members if m.inside and not m.lost}
        self._own_parts = {who: seconds for who, seconds in self._own_parts.items() if who in present}
        made = overview(
            view,
            self.history,
            self.attempts,
            self._job(),
            self.tally,
            {who: copy for who, (_, copy) in self._copies.items()},
            self._slow.poll(self._own_parts),
            rate=self._rate.per_second(began),
            unix=time.time(),
            story=self._machine.story(began),
        )
        made |= {
            "version": __version__,
            "job": self.job,
            "address": self.address,
            "page": self.page,
            "orders": self.orders,
            "uptime": began - self._began,
        }
        self._value = made
        self._bytes = json.dumps(self._value, separators=(",", ":")).encode()
        now = time.monotonic()
        self._stale = now + max(FRESH, _SHARE * (now - began))
