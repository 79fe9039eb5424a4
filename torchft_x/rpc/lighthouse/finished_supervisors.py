"""Record of finished supervisors for a job's next lighthouse, which no client can report to it.

Live supervisors repeat their reports when they reconnect. Finished ones do not come back, so the roster of a restarted
lighthouse would count their groups as lost. Therefore the journal keeps, for each finished supervisor, the events that
restore the roster's knowledge.
"""

from __future__ import annotations

from torchft_x.core.messages import job as r
from torchft_x.core.messages.job import SidecarEvent
from torchft_x.rpc.lighthouse.failover.journal import Journal, JournalContents
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import limits


class FinishedSupervisors:
    """Recorder of finished supervisors. Takes all events of the roster. Without a journal it writes nothing."""

    def __init__(self, journal: Journal | None, found: JournalContents) -> None:
        self._journal = journal
        self._seats: dict[tuple[str, int], r.SupervisorHere] = {}  # newest supervisor of each group's node
        self._attempts: dict[str, r.AttemptStarted] = {}  # newest attempt of each group
        self._together: frozenset[str] = frozenset()  # attempt tokens of the newest quorum
        self._last: dict[str, frozenset[str]] = {}  # by group outside the newest quorum: tokens of its last quorum
        self._known = {(d.group, d.node) for d in found.done}  # (group, node) of supervisors written already
        self.events = _events(found)  # events that the roster must get before all others

    def __repr__(self) -> str:
        return f"FinishedSupervisors(done {sorted(self._known)})"

    def receive(self, event: r.RosterEvent | SidecarEvent) -> None:
        """Take an event. Write the end of a supervisor, before that supervisor gets the acknowledgement."""
        if isinstance(event, r.SupervisorHere):
            self._seats[event.group, event.node] = event
        elif isinstance(event, r.AttemptStarted):
            self._attempts[event.group] = event
        elif isinstance(event, r.QuorumIssued):
            for group, started in self._attempts.items():
                if started.attempt_token in self._together and started.attempt_token not in event.attempt_tokens:
                    self._last[group] = self._together
            self._together = event.attempt_tokens
        elif isinstance(event, r.SupervisorFinished) and (event.group, event.node) not in self._known:
            self._known.add((event.group, event.node))
            if self._journal is not None:
                self._journal.keep_done(self._done(event))
        elif isinstance(event, r.GroupsChanged) and (gone := {g for g, _ in self._known}.difference(event.groups)):
            self._known = {(group, node) for group, node in self._known if group not in gone}
            if self._journal is not None:
                self._journal.drop_done(gone)

    def _done(self, event: r.SupervisorFinished) -> pb.Done:
        seat, begun = self._seats.get((event.group, event.node)), self._attempts.get(event.group)
        together = frozenset[str]()
        if begun is not None and begun.attempt_token:
            newest = begun.attempt_token in self._together
            together = self._together if newest else self._last.get(event.group, together)
        return pb.Done(
            group=event.group,
            node=event.node,
            nodes=seat.nodes if seat else 1,
            host=seat.host if seat else "?",
            attempt=begun.attempt if begun else 0,
            attempt_token=begun.attempt_token if begun else "",
            code=event.code,
            sentence=event.sentence[: limits.MAX_TEXT],
            together=sorted(together) if begun and begun.attempt_token in together else [],
        )


def _events(found: JournalContents) -> list[r.RosterEvent]:
    """Return the events that restore the finished supervisors of a journal, and the attempts of its newest quorum."""
    events: list[r.RosterEvent] = []
    for d in found.done:
        events.append(r.SupervisorHere(d.group, d.host, d.node, max(1, d.nodes)))
        if d.attempt_token:
            events.append(r.AttemptStarted(d.group, d.attempt, d.attempt_token))
        if d.together:
            events.append(r.QuorumIssued(frozenset(d.together)))
        events.append(r.SupervisorFinished(d.group, d.code, d.sentence, d.node))
        events.append(r.SupervisorGone(d.group, d.node))
    if found.entry is not None:
        events.append(r.QuorumIssued(frozenset(k.attempt_id.token for k in found.entry.members if k.attempt_id.token)))
    return events
