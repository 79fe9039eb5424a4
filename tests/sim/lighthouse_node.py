"""A lighthouse at an address: the product's machine, start after start, driven as `rpc.lighthouse.server` does.

The memory of a lighthouse is lost with each attempt, except for its journal (`Keep`), as in
rpc.lighthouse.failover.journal: the journal survives the process, but not the host. Groups and supervisors use streams,
the peer's clients single calls. With several lighthouses, one serves while it holds the product's `Lease`; the others
stand by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.base import Clock, Process
from tests.sim.book import Book
from tests.sim.network import Stream
from tests.sim.uplink import Ping, Welcome
from torchft_x.core.journal import JournalEntry
from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.messages import Tick
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, SupervisorGone, SupervisorHere, TellStop
from torchft_x.core.types import Member, Quorum, State, group_of
from torchft_x.rpc.lighthouse.failover.lease import Lease, LeaseLostError
from torchft_x.rpc.transport.session import Keepalive
from torchft_x.timing import TIMING

if TYPE_CHECKING:
    from tests.sim.peer_node import PeerNode
    from tests.sim.world import World

UNIX = 1_700_000_000.0  # Unix time in seconds at virtual time 0
PROBE_TIMEOUT = 1.0  # as in rpc.lighthouse.probe
_TOLD = (AttemptStarted, AttemptExited, lm.AttemptHalted, lm.CopyHeld)  # reports of supervisors
_CLOSING = 0.0005  # seconds that a server needs to end a stream


@dataclass(frozen=True, slots=True)
class SupervisorHello:
    """First message of a supervisor's stream."""

    group: str


class LighthouseNode:
    """All attempts of the lighthouse at one address: owns the machine, the streams and the journal of its host."""

    def __init__(self, world: World, site: str = "lh") -> None:
        self.world = world
        self.site = site
        self.beside = "g0" if site == "lh" else "g1"  # the group on its host, which may go on when that host is lost
        self.attempts = 0
        self.process: Process | None = None  # None while it is down
        self.machine: Lighthouse | None = None  # the present attempt's
        self.sessions: dict[int, Stream] = {}  # streams that have sent a hello, by session number
        self.members: dict[int, str] = {}  # session -> replica id
        self.calls: dict[int, PeerNode] = {}  # open unary call -> its client
        self.copies: dict[str, tuple[int, State]] = {}  # group -> (stream number, state that its supervisor holds) (M3)
        self._supervisors: dict[Stream, tuple[str, int]] = {}  # stream -> group, and the machine's number of the stream
        self.journal: JournalEntry | None = None  # newest entry on its host
        self.lease: Lease | None = None  # the present attempt's; None without a standby
        self._owner = site  # lease owner's name, shared by all attempts on this host
        self._fresh = True  # its host holds no journal and was never lost: a new job
        self._probing: set[str] = set()  # replica ids with a probe under way
        self.dies_sending = False  # die at the next quorum, after it was sent to some of its members
        self.stops_sending = 0.0  # seconds to stop at the next quorum, after the journal and before sending
        self._ids = 0  # newest session or stream number; none is used twice

    # --- start and end ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.process is not None:
            return
        world, first = self.world, self.attempts == 0
        self.attempts += 1
        world.note(self.name, "starts, attempt {}", self.attempts)
        clock = world.clock_of(self.site)
        self.process = Process(f"{self.name}.{self.attempts}", self.site, clock)
        if world.shared is not None:
            self.lease = Lease(world.shared, self._owner, self._stand_down, clock=lambda: clock.read(world.now))
            self._watch()
        else:
            self._serve(new=first and self._fresh, previous=self.journal, keeps=world.config.journal)

    def _serve(self, *, new: bool, previous: JournalEntry | None, keeps: bool) -> None:
        world, process = self.world, self.process
        config = replace(world.config.lighthouse, new_job=new, restarted=not new, keeps=keeps, previous=previous)
        self.machine = Lighthouse(config, now=process.clock.read(world.now), unix=UNIX + world.now)
        world.checker.on_lighthouse(self)
        world.after(config.tick, process, self._tick)

    def lose_host(self) -> None:
        """End this attempt and lose its host's data. The next attempt starts on another host."""
        self.crash()
        self.world.clocks.pop(self.site, None)
        self.journal, self._fresh = None, False
        self._owner = f"{self.site}.{self.attempts}"
        self.world.unproven = self.world.unproven or self.world.shared is None

    # --- the lease -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Stand by until this lighthouse holds the lease, then serve."""
        world, shared, lease = self.world, self.world.shared, self.lease
        lease.poll()
        if lease.entry is None:
            world.after(TIMING.failover_look, self.process, self._watch)
            return
        world.note(self.name, "has the lease, epoch {}", lease.entry.epoch)
        previous = shared.inherit(self.clock)
        self._serve(new=previous is None, previous=previous, keeps=True)
        world.after(TIMING.failover_renew, self.process, self._renew)

    def _renew(self) -> None:
        """Renew the lease now and then, as long as this attempt holds it."""
        if self._holds() and (self.world.shared.away or self._confirm()):  # away: the renewing thread hangs
            self.world.after(TIMING.failover_renew, self.process, self._renew)

    def _confirm(self) -> bool:
        """Return whether this attempt still holds the lease; if not, it ends.

        The lease is lost if another lighthouse took it, or if it is over by the own clock.
        """
        try:
            self.lease.confirm()
        except LeaseLostError:
            return False
        return True

    def _holds(self) -> bool:
        """Return whether this attempt may handle an input: it needs no lease, or holds it."""
        return self.lease is None or self.lease.holds()

    def _stand_down(self, _reason: str) -> None:
        """End this attempt after it has lost the lease, and stand by in another one."""
        self.world.note(self.name, "has lost the lease")
        self.crash()
        self.world.after(TIMING.stand_by_pause, None, self.start)

    def crash(self) -> None:
        """End this attempt: its memory is lost except for the journal, and its kernel closes the open connections."""
        process = self.process
        if process is None:
            return
        self.world.note(self.name, "dies")
        process.die()
        self.process = self.machine = self.lease = None
        for stream in [*self.sessions.values(), *self._supervisors]:
            stream.finish(process, "the lighthouse has died")
        for stream in list(self.world.network.streams):
            if stream.up.process is process:
                stream.finish(process, "the lighthouse has died")
        for call, peer in self.calls.items():
            self.world.network.send(self.site, peer.process, peer.on_failed, call, "the lighthouse has died")
        self.sessions, self.members, self.calls = {}, {}, {}
        self._supervisors, self._probing, self.copies = {}, set(), {}

    @property
    def name(self) -> str:
        """Name in the trace."""
        return "lighthouse" if self is self.world.lighthouse else "standby"

    @property
    def book(self) -> Book:
        return self.world.checker.books[self.site]

    @property
    def clock(self) -> Clock:
        return self.process.clock

    def _tick(self) -> None:
        if not self._holds():
            return
        self.feed(Tick())
        if self.process is None or self.machine is None:
            return  # this attempt has lost the lease
        if not self.process.stopped:  # else it hangs in a write, and its effects are outstanding
            self.world.checker.on_lighthouse_tick(self)
        self.world.after(self.world.config.lighthouse.tick, self.process, self._tick)

    # --- events in, effects out ----------------------------------------------------------------------------------

    def feed(self, event: lm.LighthouseEvent) -> None:
        """Give the machine an event, and carry out its effects, if this attempt holds the lease."""
        if not self._holds():
            return
        effects = self.machine.handle(event, self.clock.read(self.world.now))
        self.world.checker.on_lighthouse_event(self, event)
        if effects:
            self._carry_out(effects)

    def _carry_out(self, effects: Iterable[lm.LighthouseEffect]) -> None:
        """Carry out effects in order. A journal write or an issue may postpone the rest."""
        note, name = self.world.note, self.name
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, lm.Keep):
                if not self._keep(effect.entry, todo):
                    return
            elif isinstance(effect, lm.Issue):
                if not self._issue(effect, todo):
                    return
            elif isinstance(effect, lm.SendWaits):
                self._send(effect.sessions, effect)
            elif isinstance(effect, lm.RevokeQuorum):
                note(name, "tells {} that {} is over: {}", self._names(effect.sessions),
                     self.world.trace.name(effect.quorum_id), effect.reason)  # fmt: skip
                self.world.checker.on_over(effect.quorum_id)
                self._send(effect.sessions, effect)
            elif isinstance(effect, lm.Extend):
                self.book.joins.pop(effect.session, None)  # the grant answers the open join, if there is one
                self._send((effect.session,), effect)
            elif isinstance(effect, lm.Fence):
                note(name, "fences {}, by {}", self._names((effect.session,)), effect.by)
                self.book.drop(effect.session)
                self._send((effect.session,), effect, last=True)
            elif isinstance(effect, lm.CloseSession):
                self._end(effect.session)
            elif isinstance(effect, lm.Refuse):
                self._refuse(effect)
            elif isinstance(effect, lm.Probe):
                if effect.replica_id not in self._probing:
                    self._probing.add(effect.replica_id)
                    self._probe(effect.replica_id, effect.address, 0.01, 0.0)
            elif isinstance(effect, TellStop):
                note(name, "stops {}: {}", effect.group, effect.sentence)
                supervisor = self.world.supervisors.get(effect.group)
                if supervisor is not None:
                    self.world.after(self.world.config.latency[1], supervisor.process, supervisor.stop)
            else:
                note(name, "notes {}: {}", effect.event, effect.text)

    def _keep(self, previous: JournalEntry, rest: deque[lm.LighthouseEffect]) -> bool:
        """Write the entry to the journal before the remaining effects are carried out.

        Return False if those come later or never.
        """
        self.journal, self._fresh = previous, False
        shared, process = self.world.shared, self.process
        if shared is None:
            return True
        if shared.away:  # the write hangs, and with it this attempt
            shared.hang(process)
            self.world.after(0.0, process, self._carry_out, [lm.Keep(previous), *rest])
            return False
        boot = "" if self.world.config.one_host else self.world.boot_of(self.beside)
        shared.journals[self.lease.entry.epoch] = replace(previous, boot_id=boot), self.clock
        return self._confirm()

    def _issue(self, effect: lm.Issue, rest: deque[lm.LighthouseEffect]) -> bool:
        """Send a quorum to its members. Return False if the remaining effects come later or never."""
        quorum, world, process = effect.quorum, self.world, self.process
        world.checker.on_issue(self, quorum)
        stops, self.stops_sending = self.stops_sending, 0.0
        how = ", and is stopped before it has sent it" if stops else ""
        world.note(self.name, "issues {}{}", partial(_shown, quorum, world.trace.name(quorum.id)), how)
        if stops and process is not None:
            world.pause(process)
            world.after(stops, None, world.resume, process)
            world.after(0.0, process, self._send, effect.sessions, quorum)
            world.after(0.0, process, self._carry_out, list(rest))
            return False
        sessions = effect.sessions
        if self.dies_sending:
            sessions = tuple(s for s in sessions if world.rng.chance(0.5))
            world.note(self.name, "dies while sending; it has sent it to {}", self._names(sessions) or "nobody")
            self.dies_sending = False
            world.after(0.0, self.process, self.crash)
        self._send(sessions, quorum)
        for call in effect.calls:
            peer = self.calls.pop(call, None)
            if peer is not None:
                world.network.send(self.site, peer.process, peer.on_quorum, call, quorum)
        return True

    def _refuse(self, effect: lm.Refuse) -> None:
        self.world.note(self.name, "refuses: {}", effect.sentence)
        if effect.session is not None and effect.session in self.members and "one library" in effect.sentence:
            self.world.checker.hopeless.add(group_of(self.members[effect.session]))
        if effect.session is not None:
            self.book.drop(effect.session)
            self._send((effect.session,), effect, last=True)
        peer = self.calls.pop(effect.call, None) if effect.call is not None else None
        if peer is not None and effect.call is not None:
            self.book.calls.pop(effect.call, None)  # by its number, as its caller may have died since
            self.world.network.send(self.site, peer.process, peer.on_refused, effect.call, effect.sentence)

    def _send(self, sessions: Iterable[int], message: Any, *, last: bool = False) -> None:
        for session in sessions:
            stream = self.sessions.get(session)
            if stream is None:
                continue
            stream.down.send(message)
            if last:
                self._end(session)

    def _end(self, session: int) -> None:
        """End a session from this side. `on_end` follows."""
        stream = self.sessions.get(session)
        if stream is None or stream.ending:
            return
        stream.ending = True
        stream.down.end("the lighthouse has ended it")
        assert self.process is not None
        self.world.after(_CLOSING, self.process, self.on_end, stream)

    def _names(self, sessions: Iterable[int]) -> str:
        return ", ".join(self.members.get(s, "?") for s in sessions)

    # --- streams -------------------------------------------------------------------------------------------------

    def on_message(self, stream: Stream, message: Any) -> None:
        if stream.ending or not self._holds():
            return
        session = stream.session
        if session == 0 and isinstance(message, SupervisorHello):
            silence = self.world.config.lighthouse.silence
            stream.down.send(Welcome(Keepalive(silence.supervisor_ping, silence.alone)))
            self._ids += 1
            self._supervisors[stream] = (message.group, self._ids)
            self.feed(SupervisorHere(message.group, "host", stream=self._ids))
        elif session == 0 and isinstance(message, lm.Hello):
            self._greet(stream, message)
        elif isinstance(message, Ping):
            stream.down.send(message)
            if session:
                self.feed(lm.SignOfLife(session))
            elif stream in self._supervisors:
                self.feed(lm.SupervisorHeard(self._supervisors[stream][1]))
        elif isinstance(message, (lm.Join, lm.Progress, lm.Leave, lm.Paused)):
            if isinstance(message, lm.Leave):
                self.world.checker.departures.heard(self._names((session,)))
            self.feed(replace(message, session=session))
        elif stream in self._supervisors and isinstance(message, _TOLD):
            stream.down.send(Ping())
            group, number = self._supervisors[stream]
            if isinstance(message, lm.CopyHeld):
                self.copies[group] = (number, message.state)
            self.feed(lm.SupervisorHeard(number))
            self.feed(message if isinstance(message, AttemptExited) else replace(message, stream=number))

    def _greet(self, stream: Stream, hello: lm.Hello) -> None:
        """Open a member's session: let the machine accept or refuse its hello, and answer."""
        self._ids += 1
        session = stream.session = self._ids
        self.sessions[session] = stream
        self.members[session] = hello.replica_id
        hello = replace(hello, session=session)
        effects = self.machine.handle(hello, self.clock.read(self.world.now))
        if not any(isinstance(e, (lm.Fence, lm.Refuse)) and e.session == session for e in effects):
            silence = self.world.config.lighthouse.silence
            rhythm = Keepalive(silence.member_ping, silence.alone)
            stream.down.send(Welcome(rhythm, self.machine.others_train(hello.replica_id)))
        self.world.checker.on_lighthouse_event(self, hello)
        self._carry_out(effects)

    def on_end(self, stream: Stream, reason: str = "") -> None:
        """Handle the end of a stream. The machine receives `Closed` exactly once, and last."""
        if self.sessions.pop(stream.session, None) is not None:
            replica_id = self.members.pop(stream.session)
            self.world.note(self.name, "has lost the session of {}", replica_id)
            self.feed(lm.Closed(stream.session))
        group, number = self._supervisors.pop(stream, ("", 0))
        if group:
            if self.copies.get(group, (0,))[0] == number:
                del self.copies[group]
            self.feed(SupervisorGone(group, stream=number))

    # --- the peer's clients --------------------------------------------------------------------------------------

    def on_unary_quorum(self, peer: PeerNode, call: int, member: Member) -> None:
        self.calls[call] = peer
        self.feed(lm.UnaryJoin(call, member))

    def on_unary_gone(self, call: int) -> None:
        if self.calls.pop(call, None) is not None:
            self.feed(lm.UnaryGone(call))

    # --- probes --------------------------------------------------------------------------------------------------

    def _probe(self, replica_id: str, address: str, pause: float, spent: float) -> None:
        """Connect to the member's address, and repeat while its session stays closed."""
        world, process = self.world, self.process
        assert process is not None
        there = address.split("/")[0]
        answers = there not in world.network.off and not world.network.cannot_pass(self.site, there)
        delay = 2 * world.network.latency(self.site, there) if answers else PROBE_TIMEOUT
        world.after(delay, process, self._probed, replica_id, address, pause, spent, answers)

    def _probed(self, replica_id: str, address: str, pause: float, spent: float, answers: bool) -> None:
        refused = answers and address not in self.world.listening
        self.feed(lm.Probed(replica_id, refused))
        if self.process is None:
            return  # this attempt has lost the lease
        enough = spent + pause >= self.world.config.lighthouse.silence.alone
        if refused or enough or replica_id in self.members.values():
            self._probing.discard(replica_id)
            return
        again = min(2 * pause, 0.2)
        self.world.after(pause, self.process, self._probe, replica_id, address, again, spent + pause)


def _shown(q: Quorum, name: str) -> str:
    """Return one line that describes a quorum, for the trace."""
    members = ", ".join(
        f"{m.replica_id}@{m.state.step}{'' if m in q.carriers else ' behind'}{' torn' if m.torn else ''}"
        for m in q.members
    )
    kept = "" if q.config_id == q.id else ", same process groups"
    return f"{name} for step {q.top.step + 1}: {members}{kept}"
