"""The shell of the lighthouse machine: sessions, supervisors, the peer's unary service, status, probes, the clock.

It has no rules of its own. Streams and calls become events; `core.lighthouse` (and in job mode `core.roster`) decides;
their effects are carried out here, all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc.aio

from torchft_x._version import __version__
from torchft_x.core import messages as m
from torchft_x.core import roster as r
from torchft_x.core.companions import StopCompanion
from torchft_x.core.lighthouse import Lighthouse, LighthouseConfig
from torchft_x.core.types import Life, Quorum
from torchft_x.core.visits import Visits
from torchft_x.errors import RefusedError, TorchftXError
from torchft_x.net import Address
from torchft_x.observe.events import EVENTS, EventLog
from torchft_x.rpc import checks, codec, probe, supervisor_codec, wire
from torchft_x.rpc.companion_desk import CompanionDesk
from torchft_x.rpc.job_book import JobBook
from torchft_x.rpc.ledger import Found, Ledger
from torchft_x.rpc.lighthouse_log import NoteLog
from torchft_x.rpc.node_desk import NodeDesk
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.stream import Stream, answer, answering
from torchft_x.rpc.token import TokenCheck, check_token

log = logging.getLogger(__name__)

MAX_STREAMS = 4 * checks.MAX_MEMBERS
"""Open sessions and supervisors together; beyond it new ones are refused."""
HELLO_TIMEOUT = 10.0
"""Seconds until a new stream must have said hello."""

_PONG = pb.Down(pong=pb.Ping()).SerializeToString()
_SUPERVISOR_PONG = pb.SupervisorDown(pong=pb.Ping()).SerializeToString()


class LighthouseShell:
    """Serves one lighthouse. Make it anywhere; `start` and `stop` run on the loop of `rpc.loop`.

    `on_verdict(code, sentence)` is called once, on the loop, when the roster has decided that the job is over.
    """

    def __init__(
        self,
        config: LighthouseConfig,
        *,
        token: str | None = None,
        roster: r.Roster | None = None,
        events: EventLog | None = None,
        on_verdict: Callable[[int, str], None] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        config.check_together()
        found = Found()
        if ledger is not None:
            if config.new_job:
                ledger.void()  # whatever it holds is of another job
            else:
                found = ledger.read()
            config = replace(config, keeps=True, legacy=found.legacy)
        self.config = config  # of the machine
        self._ledger = ledger  # for the next lighthouse here; None: nothing is written down
        self._bytes: tuple[int, bytes] = (0, b"")  # id and bytes of the newest quorum: encoded once for everybody
        self._token = check_token(token)  # None: open to everybody
        self._machine = Lighthouse(config, now=time.monotonic(), unix=time.time())  # decides who is a member
        self._roster = roster  # decides when the job is over; None: runs until stopped
        self._events = events or EventLog(None, "lighthouse")  # the run's event file
        self._on_verdict = on_verdict  # see above
        self._notes = NoteLog(log)  # says what changed, not what happens each step
        self._ids = itertools.count(1)  # for sessions, calls and supervisor streams; never used twice
        self._sessions: dict[int, Stream] = {}  # those that said hello
        self._members: dict[int, tuple[str, Life]] = {}  # their replica ids and lives
        self._calls: dict[int, asyncio.Future[bytes]] = {}  # open unary quorum requests
        self._supervisors: dict[int, tuple[str, Stream]] = {}  # supervisor streams that said hello, by group
        self._nodes = NodeDesk(self._feed_group, self._note)  # those of groups over several nodes
        self._visits = Visits()  # decides when companions end, without a roster
        self._companions = CompanionDesk(self._feed_roster)  # supervisor streams of programs beside the groups
        self._probes: dict[str, asyncio.Task[None]] = {}  # running ones by replica id
        self._server: grpc.aio.Server | None = None  # while serving
        self._ticker: asyncio.Task[None] | None = None  # while serving
        self._open_streams = 0  # also those without hello
        self._stopping = False  # new streams are ended at once
        self._book = JobBook(ledger, found)  # what is over in this job
        for event in self._book.events:
            self._feed_roster(event)

    # --- life ----------------------------------------------------------------------------------------------------------

    async def start(self, bind: Address) -> int:
        """Listen and return the port. Raises `AddressError` if that can't be."""
        server = grpc.aio.server(interceptors=[TokenCheck(self._token)], options=wire.SERVER_OPTIONS)
        server.add_generic_rpc_handlers(
            (
                wire.stream_service(wire.SESSION, "Session", self._session),
                wire.stream_service(wire.SUPERVISE, "Supervise", self._supervise),
                wire.unary_service(wire.STATUS, {"Status": answering(self._status)}),
                wire.unary_service(
                    wire.LIGHTHOUSE, {"Quorum": answering(self._quorum), "Heartbeat": answering(self._heartbeat)}
                ),
            )
        )
        port = wire.listen(server, bind, "The lighthouse")
        await server.start()
        self._server = server
        self._ticker = asyncio.ensure_future(self._tick())
        return port

    async def stop(self, flush: float = 0.0) -> None:
        """Close every stream and free the port. With `flush`, what was sent is delivered first, for so many seconds."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._probes.values():
            task.cancel()
        self._stopping = True
        if flush > 0:
            supervisors = [s for _, s in self._supervisors.values()]
            for stream in [*self._sessions.values(), *supervisors, *self._companions.streams]:
                stream.finish()
            deadline = time.monotonic() + flush
            while self._open_streams and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def status(self) -> dict[str, Any]:
        """Json-able: what the machine (and the roster) know. On the loop's thread."""
        status = {"version": __version__, "wire": wire.WIRE, **self._machine.status(time.monotonic())}
        if self._roster is not None:
            status["groups"] = self._roster.status()
        status["assembly"] = self._nodes.status()
        status["companions"] = (self._roster or self._visits).companions.status()
        return status

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick)
            try:
                self._feed(m.Tick())
                self._nodes.tick()
                self._feed_roster(m.Tick())
            except Exception:  # a defect must not stop the clock without a word
                log.exception("a tick of the lighthouse failed")

    # --- events in, effects out ----------------------------------------------------------------------------------------

    def _feed(self, event: m.LighthouseEvent) -> None:
        for effect in self._machine.handle(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: m.LighthouseEffect) -> None:
        if isinstance(effect, m.Keep):
            if self._ledger is not None:
                self._ledger.keep(effect.legacy, self._encoded(effect.legacy.quorum))
        elif isinstance(effect, m.Issue):
            self._issue(effect)
        elif isinstance(effect, m.SendWaits):
            self._send(effect.sessions, codec.waits_bytes(effect))
        elif isinstance(effect, m.Extend):
            self._send([effect.session], codec.grant_bytes(effect))
        elif isinstance(effect, m.SendOver):
            self._send(effect.sessions, pb.Down(over=codec.over_to_proto(effect)).SerializeToString())
        elif isinstance(effect, m.SendPatience):
            self._send(effect.sessions, codec.patience_bytes(effect))
        elif isinstance(effect, m.Fence):
            self._send([effect.session], pb.Down(fenced=pb.Fenced(by=effect.by)).SerializeToString(), last=True)
        elif isinstance(effect, m.HangUp):
            if effect.session in self._sessions:
                self._sessions[effect.session].finish()
        elif isinstance(effect, m.Refuse):
            self._refuse(effect)
        elif isinstance(effect, m.Probe):
            self._probe(effect)
        elif isinstance(effect, m.Note):
            self._note(effect)

    def _issue(self, effect: m.Issue) -> None:
        quorum = effect.quorum
        if effect.sessions:
            self._send(effect.sessions, self._encoded(quorum))
        if effect.calls:
            data = codec.peer_quorum_bytes(quorum)
            for call in effect.calls:
                self._answer(call, data)
        if self._notes.changed_in(quorum.id):
            self._events.emit(
                "quorum",
                quorum=quorum.id,
                number=quorum.number,
                step=quorum.top.step,
                members=[x.replica_id for x in quorum.members],
            )
        if self._roster is not None:
            self._feed_roster(r.QuorumIssued(self._lives_of(quorum)))

    def _encoded(self, quorum: Quorum) -> bytes:
        if self._bytes[0] != quorum.id:
            self._bytes = (quorum.id, codec.quorum_bytes(quorum))
        return self._bytes[1]

    def _lives_of(self, quorum: Quorum) -> frozenset[str]:
        ids = {x.replica_id for x in quorum.members}
        return frozenset(life.token for replica_id, life in self._members.values() if replica_id in ids and life.token)

    def _send(self, sessions: Iterable[int], data: bytes, *, last: bool = False) -> None:
        for session in sessions:
            stream = self._sessions.get(session)
            if stream is not None:
                stream.send(data)
                if last:
                    stream.finish()

    def _answer(self, call: int, data: bytes) -> None:
        future = self._calls.get(call)
        if future is not None and not future.done():
            future.set_result(data)

    def _refuse(self, effect: m.Refuse) -> None:
        log.warning("Refused: %s", effect.sentence)
        if effect.session is not None:
            refused = pb.Down(refused=pb.Refused(sentence=effect.sentence))
            self._send([effect.session], refused.SerializeToString(), last=True)
            who, _ = self._members.get(effect.session, ("", None))
            self._events.emit("error", replica_id=who or None, reason=effect.sentence)
        future = self._calls.get(effect.call) if effect.call is not None else None
        if future is not None and not future.done():
            future.set_exception(RefusedError(effect.sentence))

    def _note(self, note: m.Note) -> None:
        self._notes.note(note)
        if note.event in EVENTS and note.event != "quorum":  # quorums are written where they are issued
            self._events.emit(
                note.event, reason=note.text, replica_id=note.replica_id or None, quorum=note.quorum_id or None
            )

    def _probe(self, effect: m.Probe) -> None:
        if effect.replica_id in self._probes:
            return  # that one goes on as long as the session is gone
        task = asyncio.ensure_future(self._probe_until_known(effect))
        self._probes[effect.replica_id] = task
        task.add_done_callback(lambda _: self._probes.pop(effect.replica_id, None))

    async def _probe_until_known(self, effect: m.Probe) -> None:
        """Once; and again while the member's session stays gone, because sockets of one process close one by one."""
        for pause in probe.pauses(self.config.silence.alone):
            refused = await probe.is_refused(effect.address)
            self._feed(m.Probed(effect.replica_id, refused))
            if refused or any(replica_id == effect.replica_id for replica_id, _ in self._members.values()):
                return
            await asyncio.sleep(pause)

    # --- sessions ------------------------------------------------------------------------------------------------------

    async def _session(self, _iterator: Any, context: Any) -> None:
        stream, session = Stream(context), next(self._ids)

        def refuse(sentence: str) -> None:
            log.warning("Refused a session from %s: %s", context.peer(), sentence)
            stream.send(pb.Down(refused=pb.Refused(sentence=sentence)).SerializeToString())
            stream.finish()

        def on_message(data: bytes) -> None:
            try:
                self._hear(session, stream, codec.parse(pb.Up, data, "session message"))
            except TorchftXError as e:
                refuse(str(e))

        try:
            await self._serve(stream, on_message, refuse, lambda: session in self._sessions)
        finally:
            if self._sessions.pop(session, None) is not None:
                del self._members[session]
                self._feed(m.Closed(session))

    async def _serve(
        self,
        stream: Stream,
        on_message: Callable[[bytes], None],
        refuse: Callable[[str], None],
        greeted: Callable[[], bool],
    ) -> None:
        """Serve one stream, with a limit on their number and on the time without a hello."""
        if self._stopping:
            stream.finish()
        elif self._open_streams >= MAX_STREAMS:
            refuse(f"The lighthouse serves {MAX_STREAMS} streams already.")
        self._open_streams += 1
        impatience = asyncio.get_running_loop().call_later(
            HELLO_TIMEOUT, lambda: None if greeted() else refuse(f"No hello came within {HELLO_TIMEOUT:g} s.")
        )
        try:
            await stream.serve(on_message)
        finally:
            impatience.cancel()
            self._open_streams -= 1

    def _hear(self, session: int, stream: Stream, up: pb.Up) -> None:
        if session in self._sessions:
            if up.WhichOneof("kind") in ("ping", "pause"):
                stream.send(_PONG)
            self._feed(codec.up_to_event(session, up))
            return
        if up.WhichOneof("kind") != "hello":
            raise RefusedError("The first message of a session must be hello.")
        _check_wire(up.hello.wire, f"{up.hello.replica_id:.200} ({up.hello.library:.50})")
        hello = codec.hello_from_proto(session, up.hello)
        self._sessions[session] = stream
        self._members[session] = (hello.replica_id, hello.life)
        effects = self._machine.handle(hello, time.monotonic())
        if not any(isinstance(e, (m.Fence, m.Refuse)) and e.session == session for e in effects):
            stream.send(pb.Down(welcome=self._welcome(self.config.silence.member_ping)).SerializeToString())
        for effect in effects:
            self._carry_out(effect)

    # --- the peer's service --------------------------------------------------------------------------------------------

    async def _quorum(self, request: bytes, context: Any) -> bytes:
        member = codec.parse(peer_pb.LighthouseQuorumRequest, request, "request").requester
        call = next(self._ids)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self._feed(m.UnaryJoin(call, codec.peer_member_from_proto(member)))
            return bytes(
                await answer(future, context, gone=lambda: self._feed(m.UnaryGone(call)), why=self._why_no_quorum)
            )
        finally:
            del self._calls[call]

    def _why_no_quorum(self) -> str:
        return f"No quorum formed in time: {(self._machine.undecided or 'no reason known').rstrip('.')}."

    async def _heartbeat(self, request: bytes, _context: Any) -> bytes:
        replica_id = codec.parse(peer_pb.LighthouseHeartbeatRequest, request, "request").replica_id
        self._feed(m.Heartbeat(checks.check_replica_id(replica_id)))
        return b""

    async def _status(self, _request: bytes, _context: Any) -> bytes:
        return bytes(pb.StatusReply(json=json.dumps(self.status(), default=str)).SerializeToString())

    # --- supervisors ---------------------------------------------------------------------------------------------------

    async def _supervise(self, _iterator: Any, context: Any) -> None:
        stream, key = Stream(context), next(self._ids)

        def refuse(sentence: str) -> None:
            log.warning("Refused a supervisor from %s: %s", context.peer(), sentence)
            stream.send(pb.SupervisorDown(refused=pb.Refused(sentence=sentence)).SerializeToString())
            stream.finish()

        def on_message(data: bytes) -> None:
            try:
                self._hear_supervisor(key, stream, codec.parse(pb.SupervisorUp, data, "supervisor's message"))
            except TorchftXError as e:
                refuse(str(e))

        try:
            await self._serve(stream, on_message, refuse, lambda: key in self._supervisors or key in self._companions)
        finally:
            self._companions.gone(key)
            group, _ = self._supervisors.pop(key, ("", None))
            if group:
                self._feed(m.GuardianGone(key))
                if not any(other == group for other, _ in self._supervisors.values()):
                    self._feed(m.GroupAnnounced(group, False))
                self._feed_roster(r.SupervisorGone(group, self._nodes.gone(key)))

    def _hear_supervisor(self, key: int, stream: Stream, up: pb.SupervisorUp) -> None:
        kind = up.WhichOneof("kind")
        if key not in self._supervisors and key not in self._companions:
            if kind != "hello":
                raise RefusedError("The first message of a supervisor must be hello.")
            self._greet_supervisor(key, stream, up.hello)
            return
        stream.send(_SUPERVISOR_PONG)  # also to a report: it may be the last, and the stream end with the job
        self._feed(m.GuardianHeard(key))
        if key in self._companions:
            self._companions.hear(key, up)
            return
        group, _ = self._supervisors[key]
        if kind == "halted":
            self._feed(supervisor_codec.halted_event(key, up.halted))
        elif key in self._nodes:
            self._nodes.hear(key, up)
            if kind == "ended":
                self._tell_next(stream, group, above=up.ended.attempt + 1)
        elif kind in ("started", "exited", "done"):
            self._feed_group(supervisor_codec.supervisor_event(group, up))
            if kind == "exited":
                self._tell_next(stream, group, above=up.exited.attempt + 1)
        elif kind != "ping":
            raise RefusedError(
                "A supervisor sends one hello, then started, exited, done and ping; something else came."
            )

    def _greet_supervisor(self, key: int, stream: Stream, hello: pb.SupervisorHello) -> None:
        who = (
            f"the companion {hello.companion:.200}"
            if hello.companion
            else f"the supervisor of group {hello.group:.200}"
        )
        _check_wire(hello.wire, f"{who} on {hello.host:.200}")
        welcome = self._welcome(self.config.silence.supervisor_ping)
        if hello.companion:
            stream.send(pb.SupervisorDown(welcome=welcome).SerializeToString())
            self._companions.greet(key, stream, hello)
            return
        group, host = checks.check_replica_id(hello.group), checks.check_replica_id(hello.host or "?")
        stream.send(pb.SupervisorDown(welcome=welcome).SerializeToString())
        self._tell_next(stream, group)
        if hello.nodes > 1:
            self._nodes.greet(key, stream, hello)
        self._supervisors[key] = (group, stream)
        self._feed(m.GroupAnnounced(group, True))
        self._feed(m.GuardianHere(key, group, hello.node))
        self._feed_roster(r.SupervisorHere(group, host, hello.node, max(1, hello.nodes)))

    def _welcome(self, ping: float) -> pb.Welcome:
        c = self.config
        return pb.Welcome(heartbeat_timeout_s=c.silence.alone, lease_s=c.lease, ping_s=ping)

    def _tell_next(self, stream: Stream, group: str, above: int = -1) -> None:
        """The number of the group's next life, if it is above what the supervisor will take by itself."""
        attempt = self._machine.next_attempt(group)
        if attempt > above:
            stream.send(pb.SupervisorDown(next=pb.NextLife(attempt=attempt)).SerializeToString())

    def _feed_group(self, event: r.RosterEvent) -> None:
        """What is true of a group as a whole."""
        if isinstance(event, r.LifeStarted):
            self._feed(m.LifeBegun(event.group, event.attempt, event.life))
        elif isinstance(event, r.LifeExited):
            self._feed(m.LifeEnded(event.life, event.code))
        self._feed_roster(event)

    def _feed_roster(self, event: r.RosterEvent) -> None:
        """To the roster; without one, to what takes its place for companions."""
        machine = self._roster or self._visits
        if self._roster is not None:
            self._book.hear(event)
        for effect in machine.handle(event, time.monotonic()):
            if isinstance(effect, StopCompanion):
                self._companions.stop(effect)
            elif isinstance(effect, r.TellStop):
                data = pb.SupervisorDown(stop=pb.Stop(code=effect.code, sentence=effect.sentence)).SerializeToString()
                for group, stream in self._supervisors.values():
                    if group == effect.group:
                        stream.send(data)
            elif isinstance(effect, r.Verdict):
                if self._ledger is not None:
                    self._ledger.void()  # the next one here is of another job
                if self._on_verdict is not None:
                    self._on_verdict(effect.code, effect.sentence)
            else:
                self._note(effect)


def _check_wire(theirs: int, who: str) -> None:
    if theirs != wire.WIRE:
        caller = "".join(c for c in who if c.isprintable())
        raise RefusedError(
            f"This lighthouse (torchft_x/{__version__}) speaks version {wire.WIRE} of torchft_x's wire and {caller} "
            f"version {theirs}; install the same torchft_x everywhere."
        )
