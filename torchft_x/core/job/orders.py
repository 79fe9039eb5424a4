"""What a person asks of a group: to be killed, to leave in good order and rest, to begin again.

* *kill*: the life that runs is ended at once (SIGKILL), and started again, as after any other death; it costs no restart.
* *drain*: it leaves at its next step boundary, and is not started until somebody asks for it.
* *resume*: a drained group begins again.

A group's supervisor carries an order out: it can end a process that hangs, and it alone can keep one from being started.
A group without one (torchft's clients, a script started by hand) can only be killed, through its group server.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages.job import GroupRests
from torchft_x.errors import RefusedError

KINDS = ("kill", "drain", "resume")
EVERY = "*"
"""In place of a group, with drain and resume: all that this concerns, so the job is paused, or goes on."""


@dataclass(frozen=True, slots=True)
class Order:
    """To all supervisors of the group."""

    kind: str  # one of KINDS
    group: str
    life: str  # a kill's: only this life is meant; '': any
    sentence: str  # why, for its log


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of the group that an order is for."""

    group: str
    supervised: bool  # a supervisor is here
    life: str  # token of its newest life
    alive: bool  # that runs
    rests: bool  # its supervisor says that it is drained
    finished: bool  # and that it is done with it
    reachable: bool  # it has a group server


class Orders:
    """Which groups are to rest. Raises `RefusedError` for what can't be done."""

    def __init__(self) -> None:
        self._drained: set[str] = set()

    @property
    def drained(self) -> frozenset[str]:
        return frozenset(self._drained)

    def give(self, kind: str, asked: Asked) -> Order | None:
        """What its supervisors are told. None: it has none, so its group server is told to exit."""
        group = asked.group
        if asked.finished:
            raise RefusedError(f"Group {group} has finished: there is nothing of it to {kind}.")
        if kind == "kill":
            return self._kill(asked)
        if not asked.supervised:
            raise RefusedError(
                f"Group {group} has no supervisor here, which alone could {kind} it; end its processes with SIGTERM, and "
                "they leave at a step boundary. (`torchft_x supervise` starts a group with one.)"
            )
        rests = group in self._drained or asked.rests
        if kind == "drain":
            if rests:
                raise RefusedError(f"Group {group} is drained already, or about to be.")
            self._drained.add(group)
            return Order("drain", group, "", "drained by request")
        if kind == "resume":
            if not rests:
                raise RefusedError(f"Group {group} is not drained.")
            self._drained.discard(group)
            return Order("resume", group, "", "resumed by request")
        raise RefusedError(f"There is no order {kind!r:.50}; the orders are {', '.join(KINDS)}.")

    def _kill(self, asked: Asked) -> Order | None:
        if asked.supervised and asked.alive:
            return Order("kill", asked.group, asked.life, "killed by request")
        if asked.supervised or not asked.reachable:
            raise RefusedError(f"No process of group {asked.group} runs now.")
        return None

    def arrived(self, group: str) -> Order | None:
        """A supervisor of this group has come: one that replaces another does not know that the group is to rest."""
        return Order("drain", group, "", "drained by request") if group in self._drained else None

    def heard(self, event: GroupRests) -> None:
        """A lighthouse that was started again hears from the supervisors what it has asked them."""
        (self._drained.add if event.rests else self._drained.discard)(event.group)
