"""Start and end of a group's attempts, by its one supervisor or by the supervisors of all its nodes together.

A group on one node uses `Attempts`. On several nodes each supervisor uses `MultiNode`: it reports when it is ready,
starts its part at the lighthouse's order, and stops it when the lighthouse reports that the attempt is over. Node 0
provides the address of the workers' store and keeps the group's restart budget, so that the nodes never disagree about
it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torchft_x import net
from torchft_x.launch.process.restarts import OWN_FAULTS, AttemptEnd
from torchft_x.launch.supervisor.config import SupervisorConfig
from torchft_x.launch.supervisor.locate import Reports
from torchft_x.launch.supervisor.requests import StopRequests
from torchft_x.timing import LOG_AFTER

_BACKLOG = 2048  # workers that may connect before the store is up


@dataclass(frozen=True)
class StartedAttempt:
    """An attempt to be started now."""

    attempt: int
    attempt_token: str
    meeting: str = ""  # host:port of the store of a group over several nodes
    # Socket of that store, on node 0 only; to be closed with the attempt.
    listener: socket.socket | None = field(default=None, compare=False)


class Attempts:
    """Coordination of the attempts of a group on one node: its supervisor decides alone. Called on the main thread."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports  # to the lighthouse
        self.decides = True  # whether this supervisor decides if the group is restarted

    def begin(self, attempt: int) -> StartedAttempt | None:
        """Return the next attempt, whose number is `attempt` or later, or None after a request to stop."""
        started = StartedAttempt(attempt, secrets.token_hex(8))
        self._reports.started(attempt, started.attempt_token)
        return started

    def is_over(self, started: StartedAttempt) -> bool:
        """Return whether this node's part of the attempt must be killed at once."""
        return False

    def finished(self, started: StartedAttempt) -> None:
        """Report that all workers of this node exited with 0, while the store still serves the other nodes."""

    def ended(self, started: StartedAttempt, end: AttemptEnd) -> None:
        """Report at once that no process of the attempt is left on this node."""
        self._reports.exited(started.attempt, started.attempt_token, end.code, end.reason)

    def outcome(self, started: StartedAttempt, end: AttemptEnd) -> AttemptEnd | None:
        """Return how the attempt ended for the whole group, or None if a request to stop comes before that is known."""
        return end


class MultiNode(Attempts):
    """Coordination for one node of a group over several: the lighthouse starts and ends attempts on all nodes.

    The other nodes reach this one by `host`. `say` logs a line for people.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        host: str,
        reports: Reports,
        stops: StopRequests,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(reports)
        self._config = config  # fixed
        self.decides = config.node == 0
        self._host = host
        self._stops = stops
        self._say = say
        self._finished = ""  # token of the newest attempt that was reported as finished here
        self._listener: socket.socket | None = None  # socket of the next or present attempt's store, held by node 0
        # The client's thread replaces these as whole values; the main thread reads them.
        self._begun: StartedAttempt | None = None  # newest order to start an attempt
        self._over: dict[str, tuple[int, str]] = {}  # token -> exit code and reason, for the newest attempt only
        reports.callbacks.begin, reports.callbacks.over = self._on_begin, self._on_over

    def begin(self, attempt: int) -> StartedAttempt | None:
        self._begun = None
        self._reports.ready(attempt, self._meeting() if self.decides else "")
        if self._stops.wait(lambda: self._begun is not None, LOG_AFTER):
            return self._with_listener()
        config = self._config
        if self._stops.first is None:
            self._say(f"{config.name} waits until all {config.nodes} nodes are ready")
        if self._stops.wait(lambda: self._begun is not None, config.patience):
            return self._with_listener()
        if self._stops.first is None:
            self._stops.request(
                1,
                f"not all {config.nodes} nodes of group {config.group} were ready within {config.patience:g} s; "
                "the lighthouse's log says which is missing (each needs a supervisor with the same --groups and --nodes)",
            )
        return None

    def is_over(self, started: StartedAttempt) -> bool:
        return started.attempt_token in self._over

    def finished(self, started: StartedAttempt) -> None:
        if self._finished != started.attempt_token:
            self._finished = started.attempt_token
            self._reports.exited(started.attempt, started.attempt_token, 0, "finished")

    def ended(self, started: StartedAttempt, end: AttemptEnd) -> None:
        if end.ok:
            self.finished(started)
        else:
            reason = f"node {self._config.node}: {end.reason}{end.said}"
            self._reports.exited(started.attempt, started.attempt_token, end.code or 1, reason)

    def outcome(self, started: StartedAttempt, end: AttemptEnd) -> AttemptEnd | None:
        while not self._stops.wait(lambda: started.attempt_token in self._over, self._config.patience):
            if self._stops.first is not None:
                return None
            if not self._reports.is_up():  # with a connection, the other nodes are still ending the attempt
                return self._judge_alone(end)
        code, reason = self._over[started.attempt_token]
        if code == 0:
            return replace(end, ok=True, code=0, reason="finished")
        own = code > 0 or -code in OWN_FAULTS
        return replace(end, ok=False, code=code, reason=reason, own_doing=own, last_words=(), shown=True)

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _judge_alone(self, end: AttemptEnd) -> AttemptEnd | None:
        """Decide how the attempt ended while the lighthouse is unreachable: return a good end, or give the group up."""
        config = self._config
        away = f"the lighthouse has been away for {config.patience:g} s, so the other nodes can't be asked"
        if end.ok:
            self._say(f"{config.name} has finished; {away}")
            return end
        self._stops.request(1, f"{end.reason}; {away}")
        return None

    def _meeting(self) -> str:
        """Listen for the next attempt's workers, and return the address (host:port) by which they reach this node."""
        if self._listener is not None:
            self._listener.close()
        host = net.any_host()
        both = ":" in host
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        return net.Address(self._host, self._listener.getsockname()[1]).target

    def _with_listener(self) -> StartedAttempt | None:
        return None if self._begun is None else replace(self._begun, listener=self._listener)

    def _on_begin(self, attempt: int, attempt_token: str, meeting: str) -> None:
        self._over = {}
        self._begun = StartedAttempt(attempt, attempt_token, meeting)
        self._stops.wake()

    def _on_over(self, attempt_token: str, code: int, reason: str) -> None:
        self._over = {**self._over, attempt_token: (code, reason)}
        self._stops.wake()
