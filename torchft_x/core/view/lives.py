"""What supervisors have said of their groups: where they run, how often they were started, how the newest life ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchft_x.core.messages.job import (
    GroupRests,
    LifeExited,
    LifeStarted,
    RosterEvent,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)

MOST = 4096
"""Groups that are known; of a lighthouse that serves job after job the oldest that are gone are forgotten."""


@dataclass(slots=True)
class GroupLives:
    """One group, as its supervisors tell it. Times are unix seconds."""

    group: str
    streams: dict[int, int] = field(default_factory=dict)  # open stream -> node
    hosts: dict[int, str] = field(default_factory=dict)  # node -> where its newest supervisor runs
    life: str = ""  # token of the newest
    attempt: int = 0  # of the newest life
    starts: int = 0  # lives that this lighthouse has heard of
    alive: bool = False  # whether that life runs
    since: float = 0.0  # when that became so
    code: int = 0  # of the newest life that has ended
    reason: str = ""  # how it ended
    finished: tuple[int, str] | None = None  # code and sentence, once its supervisor is done with it
    rests: bool = False  # drained: not started again until somebody asks for it

    @property
    def here(self) -> bool:
        return bool(self.streams)

    @property
    def host(self) -> str:
        return ", ".join(dict.fromkeys(self.hosts[node] for node in sorted(self.hosts)))

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)


class Lives:
    """Hears all that the roster hears."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupLives] = {}  # by the name that supervisors use
        self.restarts = 0  # of all groups

    def __iter__(self) -> Iterator[GroupLives]:
        return iter(self._groups.values())

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> GroupLives | None:
        return self._groups.get(group)

    def hear(self, event: RosterEvent, t: float) -> None:
        """`t`: unix seconds."""
        match event:
            case SupervisorHere():
                known = self._known(event.group)
                known.hosts[event.node] = event.host
                if event.stream:  # else it is of a lighthouse before this one
                    known.streams[event.stream] = event.node
                    known.finished = None
            case SupervisorGone():
                self._known(event.group).streams.pop(event.stream, None)
            case LifeStarted():
                self._start(self._known(event.group), event, t)
            case LifeExited():
                self._exit(self._known(event.group), event, t)
            case SupervisorFinished():
                known = self._known(event.group)
                if known.finished is None or not event.code:
                    known.finished, known.alive, known.since = (event.code, event.sentence), False, t
            case GroupRests():
                known = self._known(event.group)
                known.rests, known.since = event.rests, t

    def _start(self, known: GroupLives, event: LifeStarted, t: float) -> None:
        if event.life == known.life or event.attempt < known.attempt:  # said again after a reconnect
            return
        self.restarts += known.starts > 0
        known.starts += 1
        known.life, known.attempt, known.alive, known.since = event.life, event.attempt, True, t

    def _exit(self, known: GroupLives, event: LifeExited, t: float) -> None:
        if event.life == known.life and known.alive:
            known.alive, known.code, known.reason, known.since = False, event.code, event.reason, t

    def _known(self, group: str) -> GroupLives:
        if group not in self._groups:
            if len(self._groups) >= MOST:
                gone = next((g.group for g in self._groups.values() if not g.here), None)
                self._groups.pop(gone if gone is not None else next(iter(self._groups)))
            self._groups[group] = GroupLives(group)
        return self._groups[group]
