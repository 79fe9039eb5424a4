"""The lighthouse's service for supervisors: those of groups, on one node or several, and those of sidecars.

Their streams become events of the lighthouse's machine, which learns which attempts have ended, and of the roster,
which decides when the job is over. Everything happens on the loop's thread.

Live supervisors repeat their reports when they reconnect. Finished ones do not come back, so the roster of a restarted
lighthouse would count their groups as lost. Therefore the journal keeps what restores its knowledge of them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchft_x.core.job import outcome as r
from torchft_x.core.job.multi_node import GangCoordinator
from torchft_x.core.job.sidecars import Sidecars
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import job as j
from torchft_x.core.messages import lighthouse as m
from torchft_x.core.messages import nodes as n
from torchft_x.errors import RefusedError
from torchft_x.observe.view.overview import Job
from torchft_x.rpc.codec import messages, supervisors
from torchft_x.rpc.lighthouse.failover.journal import Journal, JournalContents
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.stream import Stream

if TYPE_CHECKING:
    from torchft_x.rpc.lighthouse.server import LighthouseShell

_PONG = pb.SupervisorDown(pong=pb.Ping()).SerializeToString()


class SupervisorService:
    """Service for all supervisors. The lighthouse's key identifies a stream."""

    def __init__(
        self, shell: LighthouseShell, roster: r.JobOutcome | None, journal: Journal | None, found: JournalContents
    ) -> None:
        """Restore the supervisors that have finished, as `found` in the journal."""
        self._shell = shell  # the lighthouse, of which this is a part
        self._roster = roster  # decides when the job is over; None: the lighthouse runs until it is stopped
        self._journal = journal
        self._written = {(d.group, d.node) for d in found.done}  # (group, node) of the ends in the journal
        self._known_sidecars = roster.sidecars if roster is not None else Sidecars()
        self._streams: dict[int, tuple[str, Stream]] = {}  # groups' streams after their hello: group, stream
        self._gangs = GangCoordinator(make_token=lambda: secrets.token_hex(8))  # of groups over several nodes
        self._nodes: dict[int, int] = {}  # streams of these groups -> node
        self._sidecars: dict[int, tuple[str, Stream]] = {}  # sidecars' streams after their hello: name, stream
        for event in restored(found):
            self._feed_roster(event)

    def __contains__(self, key: int) -> bool:
        return key in self._streams or key in self._sidecars

    @property
    def streams(self) -> Iterable[Stream]:
        return [stream for _, stream in (*self._streams.values(), *self._sidecars.values())]

    def status(self) -> dict[str, Any]:
        """Return the groups' states as the roster counts them, JSON-able; {} without a roster."""
        return {} if self._roster is None else self._roster.status()

    def job(self, drained: frozenset[str]) -> Job:
        """Return the supervisors' part of the overview."""
        verdict = self._roster.verdict if self._roster is not None else None
        return Job(
            outcome=self._roster.status() if self._roster is not None else None,
            verdict=(verdict.code, verdict.sentence) if verdict is not None else None,
            sidecars=self._known_sidecars.status(),
            drained=drained,
        )

    def order(self, order: j.Order) -> None:
        """Send an order to its group's supervisors."""
        _send(self._streams, order.group, pb.SupervisorDown(order=supervisors.ORDER.encode(order)))

    def tick(self) -> None:
        self._look()
        self._carry_out(self._gangs.handle(Tick(), time.monotonic()))
        self._feed_roster(Tick())

    def on_issued(self, attempt_tokens: Callable[[], frozenset[str]]) -> None:
        """Tell the roster that a quorum was issued; `attempt_tokens` returns those of its members."""
        if self._roster is not None:
            self._feed_roster(j.QuorumIssued(attempt_tokens()))

    # --- streams ------------------------------------------------------------------------------------------------------

    def receive(self, key: int, stream: Stream, up: pb.SupervisorUp) -> None:
        """Take a stream's message; the first must be a hello. Raises `RefusedError`."""
        kind = up.WhichOneof("kind")
        if key not in self:
            if kind != "hello":
                raise RefusedError("The first message of a supervisor must be hello.")
            self._greet(key, stream, up.hello)
            return
        stream.send(_PONG)  # answers reports, too, because the stream may end with the job after the last one
        if kind != "ping":
            self._look()
        self._shell.feed(m.SupervisorHeard(key))
        if key in self._sidecars:
            self._receive_of_sidecar(key, up)
            return
        group, _ = self._streams[key]
        if kind == "halted":
            self._shell.feed(supervisors.HALTED.decode(up.halted, stream=key))
        elif kind == "held":
            self._shell.feed(m.CopyHeld(key, messages.STATE.decode(up.held)))
        elif kind == "rests":
            rests = supervisors.GROUP_UP.decode(up, group=group)
            self._shell.feed(rests)
            self._feed_roster(rests)
        elif kind == "ping":
            pass
        elif key in self._nodes:
            reported = supervisors.node_event(key, up)
            self._carry_out(self._gangs.handle(reported, time.monotonic()))
            if isinstance(reported, n.NodeDone):
                end = j.SupervisorFinished(group, reported.code, reported.sentence, self._nodes[key])
                self._feed_roster(end)
        elif kind in ("started", "exited", "done"):
            event = supervisors.GROUP_UP.decode(up, group=group)
            self._feed_group(replace(event, stream=key) if isinstance(event, j.AttemptStarted) else event)
        else:
            raise RefusedError(
                "A supervisor sends one hello, then started, exited, done and ping; something else came."
            )
        if kind == "exited":
            self._tell_next(stream, group, above=up.exited.attempt + 1)

    def _receive_of_sidecar(self, key: int, up: pb.SupervisorUp) -> None:
        """Take a sidecar's end, and ignore starts and exits of its attempts. Raises `RefusedError`."""
        kind = up.WhichOneof("kind")
        if kind == "done":
            self._feed_roster(supervisors.GROUP_UP.decode(up, group=self._sidecars[key][0], sidecar=True))
        elif kind not in ("started", "exited", "ping"):
            raise RefusedError("A sidecar's supervisor sends one hello, then started, exited, done and ping.")

    def gone(self, key: int) -> None:
        """Forget a stream that has ended, with or without a hello."""
        self._look()
        sidecar, _ = self._sidecars.pop(key, ("", None))
        if sidecar:
            self._feed_roster(j.SupervisorGone(sidecar, stream=key, sidecar=True))
        group, _ = self._streams.pop(key, ("", None))
        if group:
            node = self._nodes.pop(key, None)
            if node is not None:
                self._carry_out(self._gangs.handle(n.NodeGone(key), time.monotonic()))
            gone = j.SupervisorGone(group, node or 0, key)
            self._shell.feed(gone)
            self._feed_roster(gone)

    def _look(self) -> None:
        """Deliver a change of the job's groups, before each event: a group may connect just after it was added."""
        changed = self._shell.changed()
        if changed is not None:
            gone = {group for group, _ in self._written}.difference(changed.groups)
            if gone and self._journal is not None:
                self._journal.drop_done(gone)
            self._written = {(group, node) for group, node in self._written if group not in gone}
            self._gangs.retain(changed.groups)
            self._feed_roster(changed)  # last, as it may end the job, and with it the journal

    def _greet(self, key: int, stream: Stream, hello: pb.SupervisorHello) -> None:
        self._look()
        who = f"the sidecar {hello.sidecar:.200}" if hello.sidecar else f"the supervisor of group {hello.group:.200}"
        grpc_options.check_version(hello.wire, f"{who} on {hello.host:.200}")
        welcome = pb.SupervisorDown(
            welcome=self._shell.welcome(self._shell.config.silence.supervisor_ping)
        ).SerializeToString()
        if hello.sidecar:
            if hello.group:
                raise RefusedError("A supervisor speaks for a group or for a sidecar, not for both.")
            name, host = limits.check_name(hello.sidecar), limits.check_name(hello.host or "?")
            stream.send(welcome)
            self._sidecars[key] = (name, stream)
            self._feed_roster(j.SupervisorHere(name, host, stream=key, sidecar=True))
            return
        here = supervisors.supervisor_here(key, hello)
        self._check_nodes(here)
        stream.send(welcome)
        self._tell_next(stream, here.group)
        effects = self._gangs.handle(here, time.monotonic()) if here.nodes > 1 else []
        for effect in effects:
            if isinstance(effect, m.Refuse):
                raise RefusedError(effect.sentence)
        self._streams[key] = (here.group, stream)
        if here.nodes > 1:
            self._nodes[key] = here.node
        self._carry_out(effects)
        if self._roster is None or here.group in self._roster:  # the quorum must not wait for a group outside the job
            self._shell.feed(here)
        self._feed_roster(here)

    def _check_nodes(self, here: j.SupervisorHere) -> None:
        """Raise `RefusedError` if a supervisor's number of nodes differs from that of its group's first supervisor."""
        nodes = self._roster.nodes_of(here.group) if self._roster is not None else None
        if nodes is not None and nodes != here.nodes:
            raise RefusedError(
                f"Node {here.node} of group {here.group} was told that the group has {here.nodes} nodes, its first "
                f"supervisor {nodes}; give all of them the same --nodes."
            )

    def _tell_next(self, stream: Stream, group: str, above: int = -1) -> None:
        """Send the number of the group's next attempt if it is above the one that the supervisor will use by itself."""
        attempt = self._shell.machine.next_attempt(group)
        if attempt > above:
            stream.send(pb.SupervisorDown(next=attempt).SerializeToString())

    def _carry_out(self, effects: Iterable[n.NodeEffect]) -> None:
        """Carry out effects on groups over several nodes. Those on streams that have ended are void."""
        for effect in effects:
            if isinstance(effect, (j.AttemptStarted, j.AttemptExited)):
                self._feed_group(effect)
            elif isinstance(effect, Note):
                self._shell.note(effect)
            elif effect.session in self._streams and not isinstance(effect, m.Refuse):
                stream = self._streams[effect.session][1]
                if isinstance(effect, m.CloseSession):
                    stream.finish()
                    continue
                if isinstance(effect, n.SendBegin):
                    self._shell.confirm()  # two lighthouses must not start two attempts of one group
                stream.send(supervisors.NODE_DOWN.encode(effect).SerializeToString())

    # --- events -------------------------------------------------------------------------------------------------------

    def _feed_group(self, event: j.RosterEvent) -> None:
        """Deliver an event of a group as a whole to the lighthouse's machine and to the roster."""
        if isinstance(event, (j.AttemptStarted, j.AttemptExited)):
            self._shell.feed(event)
        self._feed_roster(event)

    def _feed_roster(self, event: j.RosterEvent) -> None:
        """Deliver an event to the roster, or what concerns sidecars to these if there is none. Carry out the effects."""
        effects: list[j.RosterEffect] = []
        sidecar = j.is_of_sidecar(event)
        if not sidecar and not isinstance(event, (Tick, j.QuorumIssued)):
            self._shell.heard(event)
        if self._roster is not None:
            if isinstance(event, j.SupervisorFinished) and not (sidecar or (event.group, event.node) in self._written):
                known = self._roster.known(event.group, event.node)
                if self._journal is not None and known is not None:
                    self._journal.keep_done(done_entry(event, *known))
                    self._written.add((event.group, event.node))
            effects += self._roster.handle(event, time.monotonic())
        elif isinstance(event, Tick) or j.is_of_sidecar(event):
            effects += self._known_sidecars.handle(event, time.monotonic())
        for effect in effects:
            if isinstance(effect, j.TellStop):
                self.stop(effect)
            elif isinstance(effect, j.Verdict):
                self._shell.job_over(effect.code, effect.sentence)
            else:
                self._shell.note(effect)

    def stop(self, effect: j.TellStop) -> None:
        stop = pb.Stop(code=effect.code, sentence=effect.sentence)
        _send(self._sidecars if effect.sidecar else self._streams, effect.group, pb.SupervisorDown(stop=stop))


def _send(streams: dict[int, tuple[str, Stream]], name: str, down: pb.SupervisorDown) -> None:
    """Send a message on all of these streams that have this name."""
    data = down.SerializeToString()
    for other, stream in streams.values():
        if other == name:
            stream.send(data)


def done_entry(
    event: j.SupervisorFinished, here: j.SupervisorHere, begun: j.AttemptStarted, together: frozenset[str]
) -> pb.Done:
    """Return the entry for the end of this supervisor, of which the roster knows the rest (`JobOutcome.known`)."""
    return pb.Done(
        group=event.group,
        node=event.node,
        nodes=here.nodes,
        host=here.host,
        attempt=begun.attempt,
        attempt_token=begun.attempt_token,
        code=event.code,
        sentence=event.sentence[: limits.MAX_TEXT],
        together=sorted(together),
    )


def restored(found: JournalContents) -> list[j.RosterEvent]:
    """Return the events that restore the finished supervisors of a journal, and the attempts of its newest quorum."""
    events: list[j.RosterEvent] = []
    for d in found.done:
        events.append(j.SupervisorHere(d.group, d.host, d.node, max(1, d.nodes)))
        if d.attempt_token:
            events.append(j.AttemptStarted(d.group, d.attempt, d.attempt_token))
        if d.together:
            events.append(j.QuorumIssued(frozenset(d.together)))
        events.append(j.SupervisorFinished(d.group, d.code, d.sentence, d.node))
        events.append(j.SupervisorGone(d.group, d.node))
    if found.entry is not None:
        events.append(j.QuorumIssued(frozenset(k.attempt_id.token for k in found.entry.members if k.attempt_id.token)))
    return events
