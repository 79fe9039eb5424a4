"""Records what supervisors report about the members they watch over: that the host lives, that a process is stopped.

A supervisor names a member by the token of its attempt. A group over several nodes has a supervisor on each, and its
group server runs on node 0. So node 0's silence is told apart from the group's. Each supervisor may report a stopped
process.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from torchft_x.core.membership.failure_detector import StoppedProcess
from torchft_x.core.messages.job import SupervisorGone, SupervisorHere
from torchft_x.core.presence import Presence
from torchft_x.core.types import State


class SupervisorLiveness:
    """Table of the supervisors that are here, and of what each reports. Part of the lighthouse."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Presence]] = {}  # group -> node -> its supervisor, of those here
        self._resting: set[str] = set()  # groups of these that were drained
        self._on: dict[int, Presence] = {}  # open stream -> its supervisor
        self._last: dict[str, float] = {}  # group -> when its supervisor on node 0 was heard last, once that has gone
        self._attempt_of: dict[str, tuple[int, str]] = {}  # group -> number and token of its newest attempt
        self._watched: dict[str, str] = {}  # inverse of `_attempt_of`: token -> group
        # Attempt token, of the newest attempt or not -> stream of the supervisor that reports on it.
        self._told_on: dict[str, int] = {}
        self._tells: dict[int, str] = {}  # inverse of `_told_on`: a supervisor has one attempt at a time
        # Attempt token -> when that supervisor was heard last, once its stream has ended.
        self._silent: dict[str, float] = {}
        # Attempt token -> stream -> what it reports of a stopped process.
        self._stopped: dict[str, dict[int, StoppedProcess]] = {}

        self._held: dict[int, State] = {}  # stream -> newest state that all workers of its node left with it

    def __repr__(self) -> str:
        return f"<SupervisorLiveness of {sorted(self._groups)}, stopped={sorted(self.stopped)}>"

    @property
    def groups(self) -> AbstractSet[str]:
        """Groups with a supervisor here, by id or number, without drained ones.

        The first quorum waits for them up to `join_timeout`.
        """
        return self._groups.keys() - self._resting if self._resting else self._groups.keys()

    @property
    def announced(self) -> AbstractSet[str]:
        """Groups with a supervisor here, by id or number, including those that were drained."""
        return self._groups.keys()

    def status(self, now: float) -> list[dict[str, Any]]:
        """Return group, node and host of each supervisor that has a stream, and how many seconds ago it was heard.

        The values are JSON-able.
        """
        return [
            {"group": group, "node": node, "host": presence.host, "heard": now - presence.last_sign}
            for group, nodes in self._groups.items()
            for node, presence in nodes.items()
        ]

    def rest(self, group: str, rests: bool) -> None:
        """Record that the group was drained, or begins again."""
        (self._resting.add if rests and group in self._groups else self._resting.discard)(group)

    @property
    def held(self) -> dict[str, State]:
        """State from which each group's next attempt goes on, by group, as far as its supervisors here have reported.

        Drained groups bring none.
        """
        if not self._held:
            return {}
        found: dict[str, State] = {}
        for group in self.groups:
            nodes = [
                max((self._held.get(s, State()) for s in n.heard), default=State())
                for n in self._groups[group].values()
            ]
            state = min(nodes, default=State())
            if state > State():
                found[group] = state
        return found

    def hold(self, stream: int, state: State) -> None:
        """Record the state that this supervisor holds for its workers, none of which runs."""
        if stream in self._on:
            self._held[stream] = state

    def arrive(self, event: SupervisorHere, now: float) -> None:
        presence = self._groups.setdefault(event.group, {}).setdefault(event.node, Presence())
        presence.arrive(event.stream, event.host, now)
        self._on[event.stream] = presence

    def receive(self, stream: int, now: float) -> None:
        if stream in self._on:
            self._on[stream].receive(stream, now)

    def leave(self, event: SupervisorGone, now: float) -> None:
        """Drop a supervisor's stream, and its reports with it: it repeats what is true on its next stream."""
        presence = self._on.pop(event.stream, None)
        self._held.pop(event.stream, None)
        if presence is not None:
            self._forget(event.stream)
            if event.node == 0:
                self._last[event.group] = presence.heard[event.stream]
            token = self._tells.pop(event.stream, "")
            if self._told_on.pop(token, None) is not None:
                self._silent[token] = presence.heard[event.stream]
            presence.leave(event.stream, now)
            if not presence.here:
                del self._groups[event.group][event.node]
            if not self._groups[event.group]:
                del self._groups[event.group]
                self._resting.discard(event.group)

    def begin(self, group: str, attempt: int, token: str, stream: int = 0) -> None:
        """Record that this attempt of the group runs.

        An older supervisor, whose group runs elsewhere by now, reports an older attempt.
        """
        if token and stream in self._on:
            self._told_on.pop(self._tells.get(stream, ""), None)
            self._silent.pop(token, None)
            self._told_on[token], self._tells[stream] = stream, token
        number, older = self._attempt_of.get(group, (attempt, ""))
        if attempt >= number:
            self._watched.pop(older, None)
            self._attempt_of[group] = attempt, token
            self._watched[token] = group

    def end(self, token: str) -> None:
        """Record that this attempt has ended."""
        self._silent.pop(token, None)
        self._tells.pop(self._told_on.pop(token, 0), None)

    def set_stopped(self, stream: int, token: str, stopped: StoppedProcess | None) -> None:
        """Record that a process of this attempt is stopped. `stopped` None: none is stopped any more."""
        if stream not in self._on:
            return
        self._forget(stream)  # a supervisor has one attempt at a time
        if stopped is not None:
            self._stopped.setdefault(token, {})[stream] = stopped

    def _forget(self, stream: int) -> None:
        """Forget what this stream reported of stopped processes. There are few of those, usually none."""
        for token in [t for t, of_streams in self._stopped.items() if of_streams.pop(stream, None) and not of_streams]:
            del self._stopped[token]

    def heard(self, token: str) -> float | None:
        """Return when the supervisor beside this attempt's group server (node 0) was last heard; None: none is here."""
        beside = self._groups.get(self._watched.get(token, ""), {}).get(0) if token else None
        return None if beside is None else beside.last_sign

    def last_heard(self, token: str) -> float | None:
        """Return when the supervisor beside this attempt's group server was last heard, even if its stream has ended.

        None: it never spoke to this lighthouse, or the group runs elsewhere.
        """
        heard = self.heard(token)
        return self._last.get(self._watched.get(token, "")) if heard is None else heard

    def last_told(self, token: str) -> float | None:
        """Return when the supervisor that reports on this attempt was last heard, even if the group runs elsewhere."""
        stream = self._told_on.get(token)
        return self._silent.get(token) if stream is None else self._on[stream].heard[stream]

    def group_of(self, token: str) -> str:
        """Return the group of this attempt, as its supervisor names it; '': no supervisor here watches over it."""
        group = self._watched.get(token, "") if token else ""
        return group if group in self._groups else ""

    def silent_host(self, token: str, since: float) -> str:
        """Return the host of a supervisor of the attempt's other nodes that has a stream and was not heard since then.

        '': there is none.
        """
        nodes = self._groups.get(self._watched.get(token, ""), {})
        silent = (presence for node, presence in nodes.items() if node and presence.last_sign < since)
        return next((presence.host for presence in silent), "")

    def stopped_of(self, token: str, since: float) -> StoppedProcess | None:
        """Return the longest stop of a process of that attempt that a supervisor heard at `since` or later reports.

        A silent supervisor may be kept from reporting that the process goes on.
        """
        stopped = self._stopped.get(token)
        if not stopped:
            return None
        true = [process for stream, process in stopped.items() if self._on[stream].heard[stream] >= since]
        return min(true, key=lambda p: p.since, default=None)

    @property
    def stopped(self) -> set[str]:
        """Tokens of the attempts of which a process is stopped now."""
        return set(self._stopped)

    def forgive(self, seconds: float, now: float) -> None:
        """Shift every last sign of life: the lighthouse was starved for so long, and the silence was its own."""
        for presence in [presence for nodes in self._groups.values() for presence in nodes.values()]:
            presence.forgive(seconds, now)
        self._last = {group: min(now, heard + seconds) for group, heard in self._last.items()}
        self._silent = {token: min(now, heard + seconds) for token, heard in self._silent.items()}
