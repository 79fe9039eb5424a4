"""The simulator's record of the members that wait at a lighthouse, built from its inputs and not from its answers."""

from __future__ import annotations

from torchft_x.core.messages import lighthouse as m
from torchft_x.core.messages.job import AttemptExited, SupervisorGone


class Book:
    """Table of the unanswered joins at one lighthouse, built only from the messages of its streams and calls."""

    def __init__(self) -> None:
        self.joins: dict[int, str] = {}  # session -> replica id of the waiting member
        self._sessions: dict[int, str] = {}  # open session -> replica id
        self.calls: dict[int, str] = {}  # open unary call -> replica id
        self._heard: dict[str, float] = {}  # replica id -> time of its last message, by the lighthouse's clock
        self._halted: dict[int, str] = {}  # supervisor's stream -> replica id that it reports as stopped

    def waiting(self) -> list[tuple[str, float]]:
        """Return (replica id, time of its last message) of each waiting member."""
        names = dict.fromkeys([*self.joins.values(), *self.calls.values()])
        return [(name, self._heard[name]) for name in names]

    def is_halted(self, name: str) -> bool:
        return name in self._halted.values()

    def answered(self, name: str) -> None:
        self.joins = {s: n for s, n in self.joins.items() if n != name}
        self.calls = {c: n for c, n in self.calls.items() if n != name}

    def drop(self, session: int) -> None:
        self._sessions.pop(session, None)
        self.joins.pop(session, None)

    def enter(self, event: m.LighthouseEvent, now: float) -> None:
        if isinstance(event, m.SignOfLife):
            name = self._sessions.get(event.session)
            if name is not None:
                self._heard[name] = now
        elif isinstance(event, m.Join):
            name = self._sessions.get(event.session)
            if name is not None:
                self._heard[name] = now
                self.joins[event.session] = name
        elif isinstance(event, m.Hello):
            for session in [s for s, n in self._sessions.items() if n == event.replica_id]:
                self.drop(session)
            self._sessions[event.session] = event.replica_id
            self._heard[event.replica_id] = now
        elif isinstance(event, (m.Closed, m.Leave)):
            self.drop(event.session)
        elif isinstance(event, AttemptExited):
            name = event.attempt_token.removeprefix("token-")
            for session in [s for s, n in self._sessions.items() if n == name]:
                self.drop(session)
        elif isinstance(event, m.AttemptHalted):
            self._halted.pop(event.stream, None)
            if event.who:
                self._halted[event.stream] = event.attempt_token.removeprefix("token-")
        elif isinstance(event, SupervisorGone):
            self._halted.pop(event.stream, None)
        elif isinstance(event, m.UnaryJoin):
            self.calls[event.call] = event.member.replica_id
            self._heard[event.member.replica_id] = now
        elif isinstance(event, m.UnaryGone):
            self.calls.pop(event.call, None)
        elif isinstance(event, m.Heartbeat):
            self._heard[event.replica_id] = now
