"""The objects that a Manager is made of."""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from typing import Any

from torchft_x import env, log_lines
from torchft_x.core.commit.step import Step
from torchft_x.core.heal import WorldSizeMode
from torchft_x.core.training.step_clock import StepTimeEstimate, WaitBudget
from torchft_x.core.types import group_of
from torchft_x.observe.console import Narrator
from torchft_x.observe.events import EventLog
from torchft_x.observe.facts_collector import FactsCollector
from torchft_x.train.context.committed import CommittedState
from torchft_x.train.context.failures import StepFailures
from torchft_x.train.context.fingerprint import FingerprintBuilder
from torchft_x.train.context.memory_checkpoint import open_memory
from torchft_x.train.context.peer_links import PeerLinks
from torchft_x.train.context.state_dicts import StateDicts
from torchft_x.train.introspection.setup import status_of
from torchft_x.train.setup.connect import connect
from torchft_x.train.setup.options import Options
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.torchft_transports import adapted, takes_mirrors
from torchft_x.transfer.transport import CheckpointTransport

logger = logging.getLogger("torchft_x.train.manager")


class RankContext:
    """Objects that a Manager is made of; they never change."""

    def __init__(
        self,
        options: Options,
        step: Step,
        pg: Any,
        states: StateDicts,
        *,
        transport: CheckpointTransport[Any] | None,
        mode: WorldSizeMode,
        init_sync: bool,
        compares: bool,
        fingerprint: FingerprintBuilder,
    ) -> None:
        """Connect to the group and the lighthouse, and make the objects of a rank. Raises the errors of `connect`."""
        self.connection = connection = connect(options)
        self.options = options = connection.options  # now with the address of the group's own lighthouse, if it has one
        self.step = step  # read and changed under failures.lock
        self.state_dicts = states
        self.world_size_mode = mode
        self.init_sync = init_sync
        self.fingerprint = fingerprint  # traits that must be alike in all groups
        self.committed = CommittedState(compares=compares)
        self._group = group = group_of(connection.replica_id)
        self.events = self._event_log()
        self.log = StepLogger(f"group {group} rank {options.group_rank}", step)
        self.peers = PeerLinks(pg, options)  # connections to the other groups
        self.failures = StepFailures(
            step, self.peers, self.log, self.events, connection.client.suspect, connection.stop,
            heal_patience=options.timeout,
        )  # fmt: skip
        connection.client.watch(self.failures.on_over, self.failures.on_end)
        # Published at each change of phase.
        self.status = status_of(options, step, connection.replica_id, connection.client.story)
        if transport is None:
            transport = HTTPTransport(options.timeout, host=options.host, token=options.token)
        self.transport = carrier = adapted(transport)
        nothing = CheckpointTransport.before_commit
        # Whether the transport must be called before each commit changes the state.
        self.awaits_commits = getattr(type(carrier), "before_commit", nothing) is not nothing
        self.takes_mirrors = takes_mirrors(carrier)  # it can copy a state from several sources at a time
        self._report_progress()
        # Copies that outlive this process; None: no supervisor has memory for them.
        self.memory = open_memory(options, connection, self.events, self.log)
        if self.memory is not None and isinstance(carrier, HTTPTransport):
            carrier.borrow_from(self.memory)
        self.step_time = StepTimeEstimate()
        self.waits = WaitBudget(  # limits of the waits for other groups
            time.monotonic(), most=options.timeout, fixed=options.straggler_timeout, tell=self.status.waits
        )

    def counters(self) -> dict[str, Any]:
        """Return this library's own part of the state: numbers, and the position in the data as text, if it deals them."""
        with self.failures.lock:
            step = self.step
            data = {} if step.data is None else {"data": step.data.to_json()}
            return {
                "step": step.state.step,
                "batches_committed": step.batches_committed,
                "committed_in": step.state.committed_in,
                **data,
            }

    def full_state(self) -> dict[str, Any]:
        """Return the state that a heal copies: the user's state and the counters."""
        return {"user": self.state_dicts.save(), "torchft": self.counters()}

    def _event_log(self) -> EventLog:
        """Make this rank's event log. Rank 0's is also narrated on the console, unless only warnings are wanted."""
        o, replica_id = self.options, self.connection.replica_id
        events = EventLog(
            o.run_dir, "trainer", group=self._group, rank=o.group_rank, replica_id=replica_id, attempt=o.attempt
        )
        if o.group_rank == 0 and env.wants_news():
            events.listeners.append(Narrator(self._group).receive)
        return events

    def _report_progress(self) -> None:
        """Report the group's progress to the lighthouse, on rank 0."""
        if self.options.group_rank:
            return

        def say(line: str) -> None:
            log_lines.print_line(f"group {self._group}: {line}", role="trainer", group=self._group)

        facts = FactsCollector(self.transport.received, say if env.wants_news() else lambda _: None)
        self.events.listeners.append(facts.receive)
        self.connection.client.report_facts(facts)


class StepLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger that prefixes messages with ``[group G rank R, step N]``."""

    def __init__(self, who: str, step: Step) -> None:
        super().__init__(logger, {})
        self._who = who  # "group 1 rank 0"
        self._machine = step

    def isEnabledFor(self, level: int) -> bool:
        quiet = level <= logging.INFO and self._machine.skips_log
        return super().isEnabledFor(logging.DEBUG if quiet else level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"[{self._who}, step {self._machine.state.step}] {msg}", kwargs
