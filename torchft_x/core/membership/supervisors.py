"""What the supervisors' streams say about the members they watch over: that the host lives, that a process is stopped.

A member is known to its supervisor by the token of its life. A group over several nodes has a supervisor on each; its
group server runs on node 0, so that one's silence is told apart from the group's, and each may say that a process is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.membership.failure_detector import StoppedProcess
from torchft_x.core.messages.lighthouse import GuardianGone, GuardianHeard, GuardianHere


@dataclass(slots=True, eq=False)
class _Guardian:
    """One supervisor's stream."""

    group: str
    node: int
    heard: float  # last sign of life


class SupervisorLiveness:
    """Part of the lighthouse. A stream's number is the shell's; it is not used twice."""

    def __init__(self) -> None:
        self._streams: dict[int, _Guardian] = {}  # open ones
        self._groups: dict[str, list[int]] = {}  # group -> its open streams
        self._life_of: dict[str, tuple[int, str]] = {}  # group -> number and token of its newest life
        self._watched: dict[str, str] = {}  # the same the other way round
        self._halts: dict[
            str, dict[int, StoppedProcess]
        ] = {}  # life token -> stream -> what it says of a stopped process

    def __repr__(self) -> str:
        return f"<SupervisorLiveness of {sorted(self._groups)}, halted={sorted(self.halted)}>"

    def take(self, event: GuardianHere | GuardianHeard | GuardianGone, now: float) -> None:
        """A stream comes, speaks, goes."""
        if isinstance(event, GuardianHere):
            self.open(event.stream, event.group, event.node, now)
        elif isinstance(event, GuardianHeard):
            self.hear(event.stream, now)
        else:
            self.close(event.stream)

    def open(self, stream: int, group: str, node: int, now: float) -> None:
        self._streams[stream] = _Guardian(group, node, now)
        self._groups.setdefault(group, []).append(stream)

    def hear(self, stream: int, now: float) -> None:
        guardian = self._streams.get(stream)
        if guardian is not None:
            guardian.heard = now

    def close(self, stream: int) -> None:
        """Its words go with it: a supervisor says again what is true on its next stream."""
        guardian = self._streams.pop(stream, None)
        if guardian is not None:
            self._forget(stream)
            rest = self._groups[guardian.group]
            rest.remove(stream)
            if not rest:
                del self._groups[guardian.group]

    def begin(self, group: str, attempt: int, token: str) -> None:
        """This life of the group runs. An older supervisor, whose group runs elsewhere by now, tells of an older one."""
        number, older = self._life_of.get(group, (attempt, ""))
        if attempt >= number:
            self._watched.pop(older, None)
            self._life_of[group] = attempt, token
            self._watched[token] = group

    def halt(self, stream: int, token: str, halt: StoppedProcess | None) -> None:
        """A process of that life is stopped; None: none is, any more."""
        if stream not in self._streams:
            return
        self._forget(stream)  # it has one life at a time
        if halt is not None:
            self._halts.setdefault(token, {})[stream] = halt

    def _forget(self, stream: int) -> None:
        """What this stream said of stopped processes. There are few of those, at most times none."""
        for token in [t for t, halts in self._halts.items() if halts.pop(stream, None) and not halts]:
            del self._halts[token]

    def heard(self, token: str) -> float | None:
        """When the supervisor beside the group server of that life was last heard. None: there is none here."""
        streams = self._groups.get(self._watched.get(token, ""), ()) if token else ()
        return max((g.heard for g in map(self._streams.__getitem__, streams) if g.node == 0), default=None)

    def group_of(self, token: str) -> str:
        """The group, as its supervisor names it, of the supervisor here that watches over that life; '': there is none."""
        group = self._watched.get(token, "") if token else ""
        return group if group in self._groups else ""

    def halt_of(self, token: str, since: float) -> StoppedProcess | None:
        """The longest stop of a process of that life, of those told by supervisors that were heard at `since` or later:
        one that is silent may be kept from saying that the process goes on.
        """
        halts = self._halts.get(token)
        if not halts:
            return None
        true = [halt for stream, halt in halts.items() if self._streams[stream].heard >= since]
        return min(true, key=lambda h: h.since, default=None)

    @property
    def halted(self) -> set[str]:
        """Tokens of lives of which a process is stopped now."""
        return set(self._halts)

    def forgive(self, seconds: float, now: float) -> None:
        """The lighthouse was starved for so long, and the silence was its own."""
        for guardian in self._streams.values():
            guardian.heard = min(now, guardian.heard + seconds)
