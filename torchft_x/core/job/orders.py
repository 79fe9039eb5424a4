"""Check the orders that a person gives to a group, and say which supervisors carry them out.

* *kill*: the running attempt is killed at once (SIGKILL) and restarted, as after any other death. It costs no restart.
* *drain*: the group leaves at its next step boundary, and is not started until a person resumes it.
* *resume*: a drained group starts again.

A group's supervisor carries an order out: it can end a hanging process, and it alone can prevent a restart. A group
without a supervisor (torchft's clients, a script started by hand) can only be killed, through its group server.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages.job import GroupRests
from torchft_x.errors import RefusedError

KINDS = ("kill", "drain", "resume")
EVERY = "*"
"""Used in place of a group id with drain and resume: all groups concerned, so that the job pauses or goes on."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order to all supervisors of a group."""

    kind: str  # one of `KINDS`
    group: str
    attempt_token: str  # token of the only attempt that a kill may end; '': any
    sentence: str  # reason, for the supervisor's log


@dataclass(frozen=True, slots=True)
class OrderTarget:
    """Known facts about the group that an order is for."""

    group: str
    supervised: bool  # whether a supervisor of the group is connected
    attempt_token: str  # token of the group's newest attempt
    alive: bool  # whether that attempt runs
    rests: bool  # whether the supervisor reports that the group is drained
    finished: bool  # whether the supervisor reports that it is done with the group
    reachable: bool  # whether the group has a group server


class Orders:
    """Table of the groups that are to rest. Raises `RefusedError` for an order that can't be carried out."""

    def __init__(self) -> None:
        self._drained: set[str] = set()

    @property
    def drained(self) -> frozenset[str]:
        return frozenset(self._drained)

    def give(self, kind: str, target: OrderTarget) -> Order | None:
        """Return the order for the group's supervisors. None: it has none, so its group server must be told to exit."""
        group = target.group
        if target.finished:
            raise RefusedError(f"Group {group} has finished: there is nothing of it to {kind}.")
        if kind == "kill":
            return self._kill(target)
        if not target.supervised:
            raise RefusedError(
                f"Group {group} has no supervisor here, which alone could {kind} it; end its processes with SIGTERM, and "
                "they leave at a step boundary. (`torchft_x supervise` starts a group with one.)"
            )
        rests = group in self._drained or target.rests
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

    def _kill(self, target: OrderTarget) -> Order | None:
        if target.supervised and target.alive:
            return Order("kill", target.group, target.attempt_token, "killed by request")
        if target.supervised or not target.reachable:
            raise RefusedError(f"No process of group {target.group} runs now.")
        return None

    def arrived(self, group: str) -> Order | None:
        """Return the drain order for a newly connected supervisor, which may not know that its group is to rest."""
        return Order("drain", group, "", "drained by request") if group in self._drained else None

    def receive(self, event: GroupRests) -> None:
        """Restore a drain from a supervisor's report, because a restarted lighthouse has forgotten its orders."""
        (self._drained.add if event.rests else self._drained.discard)(event.group)
