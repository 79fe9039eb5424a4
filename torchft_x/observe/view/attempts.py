"""Record what supervisors report of their groups: hosts, number of starts, and the end of the newest attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchft_x.core.messages.job import (
    AttemptExited,
    AttemptStarted,
    GroupRests,
    RosterEvent,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)

MOST = 4096
"""Most groups that are kept. A lighthouse that serves job after job forgets the oldest that have gone."""


@dataclass(slots=True)
class GroupAttempts:
    """One group, as its supervisors report it."""

    group: str
    streams: dict[int, int] = field(default_factory=dict)  # open stream -> node
    hosts: dict[int, str] = field(default_factory=dict)  # node -> host of its newest supervisor
    attempt_token: str = ""  # token of the newest attempt
    attempt: int = 0  # number of the newest attempt
    starts: int = 0  # number of attempts that were reported to this lighthouse
    alive: bool = False  # whether the newest attempt runs
    reason: str = ""  # how the newest attempt that has ended did
    finished: tuple[int, str] | None = None  # code and sentence, once the supervisor is done with the group
    rests: bool = False  # whether the group is drained: not restarted until a person resumes it

    @property
    def here(self) -> bool:
        return bool(self.streams)

    @property
    def host(self) -> str:
        return ", ".join(dict.fromkeys(self.hosts[node] for node in sorted(self.hosts)))

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)


class AttemptTable:
    """Table of all groups, by the events that the roster gets, too."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupAttempts] = {}  # by the supervisors' name for the group
        self.restarts = 0  # sum over all groups

    def __iter__(self) -> Iterator[GroupAttempts]:
        return iter(self._groups.values())

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> GroupAttempts | None:
        return self._groups.get(group)

    def receive(self, event: RosterEvent) -> None:
        match event:
            case SupervisorHere():
                known = self._known(event.group)
                known.hosts[event.node] = event.host
                if event.stream:  # else the stream is of an earlier lighthouse
                    known.streams[event.stream] = event.node
                    known.finished = None
            case SupervisorGone():
                self._known(event.group).streams.pop(event.stream, None)
            case AttemptStarted():
                self._start(self._known(event.group), event)
            case AttemptExited():
                self._exit(self._known(event.group), event)
            case SupervisorFinished():
                known = self._known(event.group)
                if known.finished is None or not event.code:
                    known.finished, known.alive = (event.code, event.sentence), False
            case GroupRests():
                self._known(event.group).rests = event.rests

    def _start(self, known: GroupAttempts, event: AttemptStarted) -> None:
        if event.attempt_token == known.attempt_token or event.attempt < known.attempt:  # repeated after a reconnect
            return
        self.restarts += known.starts > 0
        known.starts += 1
        known.attempt_token, known.attempt, known.alive = event.attempt_token, event.attempt, True

    def _exit(self, known: GroupAttempts, event: AttemptExited) -> None:
        if event.attempt_token == known.attempt_token and known.alive:
            known.alive, known.reason = False, event.reason

    def _known(self, group: str) -> GroupAttempts:
        if group not in self._groups:
            if len(self._groups) >= MOST:
                gone = next((g.group for g in self._groups.values() if not g.here), None)
                self._groups.pop(gone if gone is not None else next(iter(self._groups)))
            self._groups[group] = GroupAttempts(group)
        return self._groups[group]
