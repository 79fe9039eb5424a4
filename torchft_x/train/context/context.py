"""The objects that a Manager is made of, and their assembly."""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
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
from torchft_x.train.context.memory_checkpoint import MemoryCheckpoint, open_memory
from torchft_x.train.context.peer_links import PeerLinks
from torchft_x.train.context.state_dicts import StateDicts
from torchft_x.train.introspection.setup import status_of
from torchft_x.train.introspection.shared_status import SharedStatus
from torchft_x.train.setup.connect import GroupConnection, connect
from torchft_x.train.setup.options import Options
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.torchft_transports import adapted, takes_mirrors
from torchft_x.transfer.transport import CheckpointTransport

logger = logging.getLogger("torchft_x.train.manager")


@dataclass(frozen=True)
class RankContext:
    """Objects that a Manager is made of; they never change."""

    options: Options
    connection: GroupConnection
    peers: PeerLinks  # connections to the other groups
    transport: CheckpointTransport[Any]
    awaits_commits: bool  # `transport` must be called before each commit changes the state
    takes_mirrors: bool  # `transport` can copy a state from several sources at a time
    state_dicts: StateDicts
    committed: CommittedState
    step: Step  # read and changed under failures.lock
    failures: StepFailures
    events: EventLog
    status: SharedStatus  # published at each change of phase
    log: logging.LoggerAdapter[Any]
    world_size_mode: WorldSizeMode
    init_sync: bool
    step_time: StepTimeEstimate
    waits: WaitBudget  # limits of the waits for other groups
    fingerprint: FingerprintBuilder  # traits that must be alike in all groups
    memory: MemoryCheckpoint | None  # copies that outlive this process; None: no supervisor has memory for them

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


def assemble(
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
) -> RankContext:
    """Connect to the group and the lighthouse, and make the objects of a rank. Raises the errors of `connect`."""
    connection = connect(options)
    options = connection.options  # now with the address of the group's own lighthouse, if it has one
    group = group_of(connection.replica_id)
    events = _event_log(options, group, connection.replica_id)
    log = StepLogger(f"group {group} rank {options.group_rank}", step)
    peers = PeerLinks(pg, options)
    failures = StepFailures(
        step, peers, log, events, connection.client.suspect, connection.stop, heal_patience=options.timeout
    )
    connection.client.watch(failures.on_over, failures.on_end)
    status = status_of(options, step, connection.replica_id, connection.client.story)
    if transport is None:
        transport = HTTPTransport(options.timeout, host=options.host, token=options.token)
    carrier = adapted(transport)
    _tell(connection, events, carrier)
    memory = open_memory(options, connection, events, log)
    if memory is not None and isinstance(carrier, HTTPTransport):
        carrier.borrow_from(memory)
    return RankContext(
        options=options,
        connection=connection,
        peers=peers,
        transport=carrier,
        awaits_commits=getattr(type(carrier), "before_commit", None) is not CheckpointTransport.before_commit,
        takes_mirrors=takes_mirrors(carrier),
        state_dicts=states,
        committed=CommittedState(compares=compares),
        step=step,
        failures=failures,
        events=events,
        status=status,
        log=log,
        world_size_mode=mode,
        init_sync=init_sync,
        step_time=StepTimeEstimate(),
        waits=WaitBudget(time.monotonic(), most=options.timeout, fixed=options.straggler_timeout, tell=status.waits),
        fingerprint=fingerprint,
        memory=memory,
    )


def _event_log(options: Options, group: str, replica_id: str) -> EventLog:
    """Make this rank's event log. Rank 0's is also narrated on the console, unless only warnings are wanted."""
    events = EventLog(
        options.run_dir, "trainer", group=group, rank=options.group_rank, replica_id=replica_id, attempt=options.attempt
    )
    if options.group_rank == 0 and env.wants_news():
        events.listeners.append(Narrator(group).receive)
    return events


def _tell(connection: GroupConnection, events: EventLog, transport: CheckpointTransport[Any]) -> None:
    """Report the group's progress to the lighthouse, on rank 0."""
    if connection.options.group_rank == 0:
        group = group_of(connection.replica_id)

        def say(line: str) -> None:
            log_lines.print_line(f"group {group}: {line}", role="trainer", group=group)

        facts = FactsCollector(transport.received, say if env.wants_news() else lambda _: None)
        events.listeners.append(facts.receive)
        connection.client.report_facts(facts)
