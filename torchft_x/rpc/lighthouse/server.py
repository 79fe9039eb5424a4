"""The shell of the lighthouse machine: sessions, supervisors, torchft's unary service, status, probes, the clock.

It has no rules of its own. Streams and calls become events, `core.lighthouse.machine` (and in job mode
`core.job.outcome`) decides, and this module carries out their effects. All of it runs on the loop's thread.
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
from torchft_x.core.job import outcome as r
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import lighthouse as m
from torchft_x.core.messages.job import GroupsChanged, RosterEvent, TellStop
from torchft_x.core.types import AttemptId, Quorum, listed, readable
from torchft_x.errors import RefusedError, TorchftXError
from torchft_x.net import Address
from torchft_x.observe.events import EVENTS, EventLog
from torchft_x.rpc.codec import messages
from torchft_x.rpc.lighthouse import probe
from torchft_x.rpc.lighthouse.failover.journal import Journal, JournalContents
from torchft_x.rpc.lighthouse.failover.lease import Lease
from torchft_x.rpc.lighthouse.page.orders import OrderDesk
from torchft_x.rpc.lighthouse.page.recorder import Recorder
from torchft_x.rpc.lighthouse.supervisor_service import SupervisorService
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.stream import Stream, answer, unary_service
from torchft_x.rpc.transport.token import check_token
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

MAX_STREAMS = 4 * limits.MAX_MEMBERS
"""Open streams of sessions and supervisors together; further ones are refused."""

_PONG = pb.Down(pong=pb.Ping()).SerializeToString()
_LEVELS = {
    "error": logging.WARNING,
    "member_lost": logging.WARNING,
    "new_lineage": logging.WARNING,
    "suspect": logging.WARNING,
    "hello": logging.DEBUG,  # the join that follows is logged
}


class LighthouseShell:
    """Shell of one lighthouse, made on any thread; `start` and `stop` run on the loop of `rpc.transport.loop`.

    `on_verdict(code, sentence)` is called once, on the loop, when the roster has decided that the job is over.
    """

    def __init__(
        self,
        config: LighthouseConfig,
        *,
        token: str | None = None,
        roster: r.JobOutcome | None = None,
        events: EventLog | None = None,
        on_verdict: Callable[[int, str], None] | None = None,
        journal: Journal | None = None,
        lease: Lease | None = None,
        changed: Callable[[], GroupsChanged | None] = lambda: None,
    ) -> None:
        """Check `lease`, of one of several lighthouses, before each message.

        `changed` returns the change of the job's groups since the last call (`GroupsFile`), or None.
        """
        config.check_together()
        found = JournalContents()
        if journal is not None:
            if not config.new_job:
                found = journal.read()
            else:
                journal.void()  # its content is from another job
            config = replace(config, keeps=True, previous=found.entry)
        self.config = config  # settings of the machine
        self._journal = journal  # journal for the next lighthouse; None: no journal is written
        self._bytes: tuple[int, bytes] = (0, b"")  # id of the newest quorum, and the quorum packed
        self.token = check_token(token)  # None: open to all
        self.machine = Lighthouse(config, now=time.monotonic(), unix=time.time())  # decides who is a member
        self._events = events or EventLog(None, "lighthouse")  # the run's event file
        self._on_verdict = on_verdict
        self.serves = lease.holds if lease is not None else lambda: True  # whether this process may send messages
        self._ids = itertools.count(1)  # keys of sessions, calls and supervisor streams; never used twice
        self._sessions: dict[int, Stream] = {}  # sessions after their hello, by key
        self._members: dict[int, tuple[str, AttemptId]] = {}  # replica id and attempt of each of these sessions
        self._calls: dict[int, asyncio.Future[bytes]] = {}  # answers of torchft's clients' open calls, by key
        self._probes: dict[str, asyncio.Task[None]] = {}  # running probes, by replica id
        self._server: grpc.aio.Server | None = None  # set while serving
        self._ticker: asyncio.Task[None] | None = None  # runs `_tick`; set by `start`
        self._open_streams = 0  # number of open streams, with and without a hello
        self._stopping = False  # True: new streams are ended at once, and no member is probed
        self.recorder = Recorder(self.machine, lambda: self._supervisors.job(frozenset(self.orders.drained)))
        self.orders = OrderDesk(
            self.recorder.attempts,
            self.token,
            lambda order: self._supervisors.order(order),
            self.machine.addresses_of,
            lambda sentence: self.note(Note("order", sentence)),
        )
        self.confirm = lease.confirm if lease is not None else lambda: None  # raises if another lighthouse may serve
        self.changed = changed
        self._supervisors = SupervisorService(self, roster, journal, found)

    # --- start and end ----------------------------------------------------------------------------------------------

    async def start(self, bind: Address) -> int:
        """Listen and return the port. Raises `AddressError`."""
        connections = grpc_options.lighthouse_connections(grpc_options.raise_descriptor_limit())
        server = grpc_options.make_server(self.token, connections)
        server.add_generic_rpc_handlers(
            (
                grpc_options.stream_service(grpc_options.SESSION, "Session", self._session),
                grpc_options.stream_service(grpc_options.SUPERVISE, "Supervise", self._supervise),
                unary_service(grpc_options.STATUS, Status=self._status, Overview=self._overview, Order=self._order),
                unary_service(grpc_options.LIGHTHOUSE, Quorum=self._quorum, Heartbeat=self._heartbeat),
            )
        )
        port = grpc_options.listen(server, bind, "The lighthouse")
        await server.start()
        self._server = server
        self._ticker = asyncio.ensure_future(self._tick())
        return port

    async def stop(self, flush: float = 0.0) -> None:
        """Close every stream and free the port. Wait up to `flush` seconds until sent messages are delivered."""
        self._stopping = True  # set before sessions close, because a closed session is probed
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._probes.values():
            task.cancel()
        if flush > 0:
            for stream in [*self._sessions.values(), *self._supervisors.streams]:
                stream.finish()
            deadline = time.monotonic() + flush
            while self._open_streams and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def reached(self) -> int:
        """Number of the job's commits so far, as reported by its members. Used on the loop's thread."""
        return self.machine.reached

    def status(self) -> dict[str, Any]:
        """Return the status of the machine and the supervisors, fit for JSON. Runs on the loop's thread."""
        machine = self.machine.status(time.monotonic())
        return {"version": __version__, "wire": grpc_options.WIRE, **machine, "groups": self._supervisors.status()}

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick)
            if not self.serves():
                return
            try:
                self.feed(Tick())
                self._supervisors.tick()
                self.recorder.tick()
            except Exception:  # a defect must be logged, and must not stop the clock
                log.exception("a tick of the lighthouse failed")

    # --- events in, effects out ---------------------------------------------------------------------------------------

    def feed(self, event: m.LighthouseEvent) -> None:
        if not self.serves():
            return
        for effect in self.machine.handle(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: m.LighthouseEffect) -> None:
        if isinstance(effect, m.Keep):
            if self._journal is not None:
                self._journal.keep(effect.entry, self._encoded(effect.entry.quorum))
        elif isinstance(effect, m.Issue):
            self._issue(effect)
        elif isinstance(effect, (m.RevokeQuorum, m.SendWaits)):
            self._send(effect.sessions, messages.down_bytes(effect))
        elif isinstance(effect, m.Extend):
            self._send([effect.session], messages.down_bytes(effect))
        elif isinstance(effect, m.Fence):
            self._send([effect.session], messages.down_bytes(effect), last=True)
        elif isinstance(effect, m.CloseSession):
            if effect.session in self._sessions:
                self._sessions[effect.session].finish()
        elif isinstance(effect, m.Refuse):
            self._refuse(effect)
        elif isinstance(effect, TellStop):
            self._supervisors.stop(replace(effect, sentence=readable(effect.sentence)))
        elif isinstance(effect, m.Probe):
            self._probe(effect)
        elif isinstance(effect, Note):
            self.note(effect)

    def _issue(self, effect: m.Issue) -> None:
        quorum = effect.quorum
        if effect.sessions:
            self._send(effect.sessions, pb.Down(quorum=self._encoded(quorum)).SerializeToString())
        if effect.calls:
            data = messages.peer_quorum_bytes(quorum)
            for future in self._open(effect.calls):
                future.set_result(data)
        log_quorum(quorum)
        self.recorder.history.issued(quorum, effect.waited, time.time())
        if quorum.config_id == quorum.id:  # members changed or a step failed; further steps write no event
            self._events.emit(
                "quorum",
                quorum=quorum.id,
                number=quorum.number,
                step=quorum.top.step,
                members=[x.replica_id for x in quorum.members],
            )
        self._supervisors.on_issued(lambda: self._tokens_of(quorum))

    def _encoded(self, quorum: Quorum) -> bytes:
        if self._bytes[0] != quorum.id:
            self._bytes = (quorum.id, messages.pack(quorum))
        return self._bytes[1]

    def _tokens_of(self, quorum: Quorum) -> frozenset[str]:
        ids = {x.replica_id for x in quorum.members}
        return frozenset(a.token for replica_id, a in self._members.values() if replica_id in ids and a.token)

    def _send(self, sessions: Iterable[int], data: bytes, *, last: bool = False) -> None:
        for session in sessions:
            stream = self._sessions.get(session)
            if stream is not None:
                stream.send(data)
                if last:
                    stream.finish()

    def _refuse(self, effect: m.Refuse) -> None:
        log.warning("Refused: %s", effect.sentence)
        who, _ = self._members.get(effect.session or 0, ("", None))
        self.recorder.history.refused(who, effect.sentence, time.time())
        if effect.session is not None:
            self._send([effect.session], messages.down_bytes(effect), last=True)
            self._events.emit("error", replica_id=who or None, reason=effect.sentence)
        if effect.call is not None:
            for future in self._open([effect.call]):
                future.set_exception(RefusedError(effect.sentence))

    def note(self, note: Note) -> None:
        log_note(note)
        self.recorder.history.noted(note, self.machine.current, self.machine.reached, time.time())
        if note.event in EVENTS:
            self._events.emit(
                note.event,
                reason=note.text,
                replica_id=note.replica_id or None,
                quorum=note.quorum_id or None,
                steps=note.steps,
            )

    def _probe(self, effect: m.Probe) -> None:
        if self._stopping or effect.replica_id in self._probes:
            return  # a running probe repeats as long as the session is gone
        task = asyncio.ensure_future(self._probe_until_known(effect))
        self._probes[effect.replica_id] = task
        task.add_done_callback(lambda _: self._probes.pop(effect.replica_id, None))

    async def _probe_until_known(self, effect: m.Probe) -> None:
        """Probe a member, again while its session stays gone: a process closes its sockets one by one."""
        for pause in probe.pauses(self.config.silence.alone):
            refused = await probe.is_refused(effect.address)
            if self._stopping:
                return  # before Python 3.12 `wait_for` may lose a cancellation
            self.feed(m.Probed(effect.replica_id, refused, effect.address))
            if refused or any(replica_id == effect.replica_id for replica_id, _ in self._members.values()):
                return
            await asyncio.sleep(pause)

    # --- streams ------------------------------------------------------------------------------------------------------

    async def _session(self, _iterator: Any, context: Any) -> None:
        await self._stream(context, pb.Up, pb.Down, self._hear, self._sessions.__contains__, self._gone)

    async def _supervise(self, _iterator: Any, context: Any) -> None:
        service = self._supervisors
        await self._stream(
            context, pb.SupervisorUp, pb.SupervisorDown, service.receive, service.__contains__, service.gone
        )

    async def _stream(
        self,
        context: Any,
        up: type[Any],
        down: type[Any],
        hear: Callable[[int, Stream, Any], None],
        greeted: Callable[[int], bool],
        gone: Callable[[int], None],
    ) -> None:
        """Serve one stream of messages `up` and `down`. Limits the number of streams, and the time until a hello.

        `hear` takes each message, with the stream and its key; `greeted` returns whether one was a hello. `gone` is
        called once, last."""
        stream, key = Stream(context), next(self._ids)

        def refuse(sentence: str) -> None:
            log.warning("Refused a stream of %s from %s: %s", up.DESCRIPTOR.name, context.peer(), sentence)
            stream.send(down(refused=pb.Refused(sentence=sentence)).SerializeToString())
            stream.finish()

        def on_message(data: bytes) -> None:
            if self.serves():
                try:
                    hear(key, stream, messages.parse(up, data, "message"))
                except TorchftXError as e:
                    refuse(str(e))

        if self._stopping:
            stream.finish()
        elif self._open_streams >= MAX_STREAMS:
            refuse(f"The lighthouse serves {MAX_STREAMS} streams already.")
        self._open_streams += 1
        impatience = asyncio.get_running_loop().call_later(
            TIMING.hello, lambda: None if greeted(key) else refuse(f"No hello came within {TIMING.hello:g} s.")
        )
        try:
            await stream.serve(on_message)
        finally:
            impatience.cancel()
            self._open_streams -= 1
            gone(key)

    def _hear(self, session: int, stream: Stream, up: pb.Up) -> None:
        kind = up.WhichOneof("kind")
        if session in self._sessions:
            if kind in ("ping", "pause"):
                stream.send(_PONG)
            self.feed(messages.up_to_event(session, up))
            if up.HasField("facts"):
                self.recorder.record_moments(self._members[session][0], messages.FACTS.decode(up.facts))
            return
        if kind != "hello":
            raise RefusedError("The first message of a session must be hello.")
        grpc_options.check_version(up.hello.wire, f"{up.hello.replica_id:.200} ({up.hello.library:.50})")
        hello = messages.HELLO.decode(up.hello, session=session)
        self._sessions[session] = stream
        self._members[session] = (hello.replica_id, hello.attempt_id)
        effects = self.machine.handle(hello, time.monotonic())
        if not any(isinstance(e, (m.Fence, m.Refuse)) and e.session == session for e in effects):
            welcome = self.welcome(self.config.silence.member_ping)
            welcome.others_train = self.machine.others_train(hello.replica_id)
            stream.send(pb.Down(welcome=welcome).SerializeToString())
        for effect in effects:
            self._carry_out(effect)

    def _gone(self, session: int) -> None:
        """Forget a session that has ended, with or without a hello."""
        if self._sessions.pop(session, None) is not None:
            del self._members[session]
            self.feed(m.Closed(session))

    # --- unary calls ---------------------------------------------------------------------------------------------------

    async def _status(self, _request: bytes, _context: Any) -> bytes:
        return json.dumps(self.status(), default=str).encode()

    async def _overview(self, _request: bytes, _context: Any) -> bytes:
        return self.recorder.bytes()

    async def _order(self, request: bytes, _context: Any) -> bytes:
        asked = messages.parse(pb.OrderRequest, request, "request")
        sentence = await self.orders.give(asked.kind, limits.check_name(asked.group))
        return json.dumps(sentence).encode()

    async def _quorum(self, request: bytes, context: Any) -> bytes:
        """Answer a client of torchft with the next quorum."""
        member = messages.parse(peer_pb.LighthouseQuorumRequest, request, "request").requester
        call = next(self._ids)
        self._calls[call] = future = asyncio.get_running_loop().create_future()
        try:
            self.feed(m.UnaryJoin(call, messages.peer_member_from_proto(member)))
            return bytes(await answer(future, context, gone=lambda: self.feed(m.UnaryGone(call)), why=self._why))
        finally:
            del self._calls[call]

    async def _heartbeat(self, request: bytes, _context: Any) -> bytes:
        replica_id = messages.parse(peer_pb.LighthouseHeartbeatRequest, request, "request").replica_id
        self.feed(m.Heartbeat(limits.check_name(replica_id)))
        return b""

    def _open(self, calls: Iterable[int]) -> list[asyncio.Future[bytes]]:
        return [f for call in calls if (f := self._calls.get(call)) is not None and not f.done()]

    def _why(self) -> str:
        return f"No quorum formed in time: {(self.machine.undecided or 'no reason known').rstrip('.')}."

    # --- supervisors --------------------------------------------------------------------------------------------------

    def job_over(self, code: int, sentence: str) -> None:
        if self._journal is not None:
            self._journal.end()
        if self._on_verdict is not None:
            self._on_verdict(code, sentence)

    def heard(self, event: RosterEvent) -> None:
        """Record an event that people are shown, so no tick."""
        self.recorder.receive(event)
        self.orders.receive(event)

    def welcome(self, ping: float) -> pb.Welcome:
        c = self.config
        return pb.Welcome(heartbeat_timeout_s=c.silence.alone, ping_s=ping)


def log_note(note: Note) -> None:
    level = logging.INFO if note.cause == "left" else _LEVELS.get(note.event, logging.INFO)
    log.log(level, "%s", note.text)


def log_quorum(quorum: Quorum) -> None:
    """Log a quorum that has other members than the last one, or follows a failed commit, in torchft's words.

    People search for these words. A further quorum of the same members gets no line."""
    if quorum.config_id != quorum.id:
        return
    members = [
        f"{m.replica_id} (step {m.state.step}, world_size {m.world_size}, commit_failures {m.commit_failures}, "
        f"address {m.address}, store_address {m.store_address.rpartition('@')[2]})"  # the secret is before the @
        for m in quorum.members
    ]
    log.info("Detected quorum change, bumping quorum_id to %d", quorum.id)
    text = "Quorum! q%d (id %d) at %s: %d members, %s"
    log.info(text, quorum.number, quorum.id, quorum.top, len(members), listed(members))
