"""Who begins and ends a group's lives: its one supervisor by itself, or all its nodes together.

A group on one node has `SingleNode`. On several nodes each supervisor is `MultiNode`: it says when it is ready, begins its
part when the lighthouse says so, and ends it when the lighthouse says that the life is over. Node 0 brings the address
the workers meet at, and keeps the group's restart budget, so that the nodes never disagree about it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torchft_x import net
from torchft_x.launch.process.restarts import OWN_FAULTS, AttemptEnd
from torchft_x.launch.supervisor.reports import NodeReports, Reports

_BACKLOG = 2048  # workers that call before the store is up
_SAY_AFTER = 5.0  # seconds of waiting for the other nodes until a person is told


@dataclass(frozen=True)
class Begun:
    """A life that shall be started now."""

    attempt: int
    life: str  # token
    meeting: str = ""  # host:port of the store of a group over several nodes
    listener: socket.socket | None = field(
        default=None, compare=False
    )  # there, on its node 0; to be closed with the life


Wait = Callable[[Callable[[], bool], float], bool]
"""Wait until the first argument is true, for so many seconds. False: told to stop, or time is up."""


class Lives(Protocol):
    """What the supervisor asks around each life. The calls are on its main thread."""

    @property
    def decides(self) -> bool:
        """Whether this supervisor decides if the group is started again."""

    def begin(self, attempt: int) -> Begun | None:
        """The next life, whose number is `attempt` or later. None: told to stop first."""

    def is_over(self, begun: Begun) -> bool:
        """Whether this node's part shall be ended at once."""

    def halted(self, begun: Begun, who: str, seconds: float) -> None:
        """This worker has been stopped for so long; empty: none is, any more."""

    def finished(self, begun: Begun) -> None:
        """All workers of this node have exited with 0, while the store still serves the other nodes."""

    def ended(self, begun: Begun, end: AttemptEnd) -> None:
        """Nothing of the life is left here: report it, at once."""

    def outcome(self, begun: Begun, end: AttemptEnd) -> AttemptEnd | None:
        """How the life ended for the whole group. None: told to stop before that is known."""


class SingleNode:
    """The only supervisor of its group."""

    decides = True

    def __init__(self, reports: Reports) -> None:
        self._reports = reports  # to the lighthouse

    def begin(self, attempt: int) -> Begun:
        begun = Begun(attempt, secrets.token_hex(8))
        self._reports.started(attempt, begun.life)
        return begun

    def is_over(self, begun: Begun) -> bool:
        return False

    def halted(self, begun: Begun, who: str, seconds: float) -> None:
        self._reports.halted(begun.life, who, seconds)

    def finished(self, begun: Begun) -> None:
        pass  # its life ends with that

    def ended(self, begun: Begun, end: AttemptEnd) -> None:
        self._reports.exited(begun.attempt, begun.life, end.code, end.reason)

    def outcome(self, begun: Begun, end: AttemptEnd) -> AttemptEnd:
        return end


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this supervisor stands in its group."""

    group: str
    node: int
    nodes: int
    host: str
    """The other nodes reach this one by it."""
    patience: float
    """Seconds to wait for the other nodes, or a lighthouse that is away, before the group is given up."""


class MultiNode:
    """One node of a group. `wait` sleeps on the main thread, `wake` ends its sleep from any thread."""

    def __init__(
        self,
        place: Place,
        reports: NodeReports,
        *,
        wait: Wait,
        stopped: Callable[[], bool],
        wake: Callable[[], None],
        say: Callable[[str], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._place = place  # fixed
        self._reports = reports  # to the lighthouse
        self._wait = wait  # see Wait
        self._stopped = stopped  # whether this supervisor was told to stop
        self._wake = wake  # from the client's thread
        self._say = say  # a line for a person
        self._give_up = give_up  # the group, with a sentence
        self._finished = ""  # newest life that was reported as finished here
        self._listener: socket.socket | None = None  # of the coming or present life's store, held by node 0
        # Written by the client's thread, each a whole value; read on the main thread.
        self._begun: Begun | None = None  # newest order to begin
        self._over: dict[str, tuple[int, str]] = {}  # life -> code and reason; only of the newest life
        reports.on_life(self._on_begin, self._on_over)

    @property
    def decides(self) -> bool:
        return self._place.node == 0

    def begin(self, attempt: int) -> Begun | None:
        self._begun = None
        self._reports.ready(attempt, self._meeting() if self.decides else "")
        if self._wait(lambda: self._begun is not None, _SAY_AFTER):
            return self._with_listener()
        place = self._place
        if not self._stopped():
            self._say(f"node {place.node} of group {place.group} waits until all {place.nodes} nodes are ready")
        if self._wait(lambda: self._begun is not None, place.patience):
            return self._with_listener()
        if not self._stopped():
            self._give_up(
                f"not all {place.nodes} nodes of group {place.group} were ready within {place.patience:g} s; the "
                "lighthouse's log says which is missing (each needs a supervisor with the same --groups and --nodes)"
            )
        return None

    def is_over(self, begun: Begun) -> bool:
        return begun.life in self._over

    def halted(self, begun: Begun, who: str, seconds: float) -> None:
        self._reports.halted(begun.life, who, seconds)

    def finished(self, begun: Begun) -> None:
        if self._finished != begun.life:
            self._finished = begun.life
            self._reports.ended(begun.attempt, begun.life, 0, "finished")

    def ended(self, begun: Begun, end: AttemptEnd) -> None:
        if end.ok:
            self.finished(begun)
        else:
            reason = f"node {self._place.node}: {end.reason}{end.said}"
            self._reports.ended(begun.attempt, begun.life, end.code or 1, reason)

    def outcome(self, begun: Begun, end: AttemptEnd) -> AttemptEnd | None:
        while not self._wait(lambda: begun.life in self._over, self._place.patience):
            if self._stopped():
                return None
            if not self._reports.is_up():  # else the other nodes still work on it
                return self._judge_alone(end)
        code, reason = self._over[begun.life]
        if code == 0:
            return replace(end, ok=True, code=0, reason="finished")
        own = code > 0 or -code in OWN_FAULTS
        return replace(end, ok=False, code=code, reason=reason, own_doing=own, last_words=(), shown=True)

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _judge_alone(self, end: AttemptEnd) -> AttemptEnd | None:
        """Nobody tells how the life ended for the group."""
        place = self._place
        away = f"the lighthouse has been away for {place.patience:g} s, so the other nodes can't be asked"
        if end.ok:
            self._say(f"node {place.node} of group {place.group} has finished; {away}")
            return end
        self._give_up(f"{end.reason}; {away}")
        return None

    def _meeting(self) -> str:
        """Listen for the coming life's workers; the address by which they reach us."""
        if self._listener is not None:
            self._listener.close()
        host = net.any_host()
        both = ":" in host
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        return net.Address(self._place.host, self._listener.getsockname()[1]).target

    def _with_listener(self) -> Begun | None:
        return None if self._begun is None else replace(self._begun, listener=self._listener)

    def _on_begin(self, attempt: int, life: str, meeting: str) -> None:
        self._over = {}
        self._begun = Begun(attempt, life, meeting)
        self._wake()

    def _on_over(self, life: str, code: int, reason: str) -> None:
        self._over = {**self._over, life: (code, reason)}
        self._wake()
