"""A supervisor's client of the lighthouse: it sends reports until they are received, and receives the order to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torchft_x.core.types import State
from torchft_x.errors import RefusedError, TorchftXError
from torchft_x.net import parse_addresses
from torchft_x.rpc.codec import messages, supervisors
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits, loop
from torchft_x.rpc.transport.loop import Notifier
from torchft_x.rpc.transport.resolve import moved_to
from torchft_x.rpc.transport.session import Keepalive, ReconnectingStream, StreamCallbacks, rhythm
from torchft_x.rpc.transport.token import check_token, metadata
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

REFUSED_CODE = 2
"""Exit code of a group whose supervisor the lighthouse refuses: a usage error, as in the commands."""
KEPT_EXITS = 1000
"""Ends of attempts that are reported again after a reconnect: more attempts than can start and end while a member waits
for a lease. A group may die again and again while the lighthouse is away, and the others may wait for each proof."""


@dataclass
class SupervisorCallbacks:
    """Callbacks for the lighthouse's messages to a supervisor. They run in order, on one thread of the client's own."""

    stop: Callable[[int, str], None] = lambda code, sentence: None
    """Called once with exit code and sentence: the group must stop, or this supervisor is refused for good (wrong token,
    other version)."""
    order: Callable[[str, str, str], None] = lambda kind, attempt_token, sentence: None
    """Called when a person gives an order."""
    number: Callable[[int], None] = lambda attempt: None
    """Called with the next attempt's number at the start of every session, and when another attempt has a higher one
    (R2)."""
    begin: Callable[[int, str, str], None] = lambda attempt, attempt_token, meeting: None
    """Called once for each attempt whose part on this node of several must be started."""
    over: Callable[[str, int, str], None] = lambda attempt_token, code, reason: None
    """Called when an attempt on several nodes is over, perhaps more than once."""


class SupervisorClient:
    """A supervisor's connection to the lighthouse that serves. Reports one group's attempts.

    No call waits for the network, except `close`. After every reconnect it repeats the reports that still hold (the
    last start, the last exits, the end), so a report made while the lighthouse was away isn't lost. `lighthouse` is
    one address, or several with commas; raises `AddressError` if it is malformed.

    With `nodes` above 1 it speaks for one node of the group: use `ready` instead of `started`. The file
    `lighthouse_file` holds the address of a lighthouse that has moved. With `sidecar` (a name; `group` is then empty) it
    speaks for a sidecar.
    """

    def __init__(
        self,
        lighthouse: str,
        group: str,
        host: str,
        token: str | None = None,
        *,
        node: int = 0,
        nodes: int = 1,
        sidecar: str = "",
        lighthouse_file: str = "",
    ) -> None:
        self.group = group  # REPLICA_GROUP_ID
        self._name = sidecar or group  # name for people
        self._hello = pb.SupervisorHello(group=group, host=host, sidecar=sidecar, wire=grpc_options.WIRE)
        if nodes > 1:
            self._hello.node, self._hello.nodes, self._hello.incarnation = node, nodes, secrets.token_hex(8)
        self._reports: dict[str, bytes] = {}  # by kind, in the order they became true; changed on the loop only
        self.callbacks = SupervisorCallbacks()  # set before `start`
        self._stop: tuple[int, str] | None = None  # the order to stop, once received
        self._notifier = Notifier(f"supervisor-{self._name}")  # runs all callbacks
        self._unanswered = 0  # messages sent since the welcome and not answered yet; each gets a pong
        self._ping = pb.SupervisorUp(ping=pb.Ping()).SerializeToString()
        callbacks = StreamCallbacks(
            hello=pb.SupervisorUp(hello=self._hello).SerializeToString,
            welcome=self._welcome,
            up=self._up,
            message=self._hear,
            down=self._down,
            refused=self._refused,
            pinged=self._count,
        )
        first, *others = parse_addresses(lighthouse, what="lighthouse address")
        method, proof = f"/{grpc_options.SUPERVISE}/Supervise", metadata(check_token(token))
        seek = partial(moved_to, lighthouse_file) if lighthouse_file else None
        self._stream = ReconnectingStream(first, method, proof, self._ping, callbacks, others=others, seek=seek)

    def __repr__(self) -> str:
        return f"SupervisorClient({self._name} to {self._stream.address.url}, {'up' if self._stream.is_up else 'away'})"

    def start(self) -> None:
        """Connect to the lighthouse."""
        loop.post(self._stream.start)

    def started(self, attempt: int, attempt_token: str) -> None:
        """Report that a new attempt of the group runs, with its token."""
        started = pb.AttemptStarted(attempt=attempt, attempt_token=attempt_token)
        self._report("started", pb.SupervisorUp(started=started))

    def exited(self, attempt: int, attempt_token: str, code: int, reason: str) -> None:
        """Report that no process of an attempt is left, or none on this node, which proves its death to other groups."""
        reason = reason[: limits.MAX_TEXT]
        exited = pb.AttemptExited(attempt=attempt, attempt_token=attempt_token, code=code, reason=reason)
        self._report("exited" if self._hello.nodes else f"exited {attempt_token}", pb.SupervisorUp(exited=exited))

    def halted(self, attempt_token: str, who: str, seconds: float) -> None:
        """Report that a process has been stopped (SIGSTOP, a debugger) for `seconds`; empty `who`: none is."""
        halted = pb.AttemptHalted(attempt_token=attempt_token, who=who, seconds=seconds)
        self._report("halted", pb.SupervisorUp(halted=halted))

    def rests(self, rests: bool) -> None:
        """Report whether the group is drained: no attempt of it runs, and none is started until it is resumed."""
        self._report("rests", pb.SupervisorUp(rests=pb.GroupRests(rests=rests)))

    def held(self, state: State) -> None:
        """Report the state that the group's workers here left copies of in this supervisor's memory; step 0: none."""
        self._report("held", pb.SupervisorUp(held=pb.State(step=state.step, committed_in=state.committed_in)))

    def done(self, code: int, sentence: str) -> None:
        """Report that the group won't be restarted, with its exit code and a sentence."""
        done = pb.SupervisorDone(code=code, sentence=sentence[: limits.MAX_TEXT])
        self._report("done", pb.SupervisorUp(done=done))

    def is_up(self) -> bool:
        """Return whether there is a session with the lighthouse."""
        return self._stream.is_up

    def ready(self, attempt: int, meeting: str) -> None:
        """Report that this node runs no process and waits for the group's next attempt.

        `meeting`: the workers' rendezvous, host:port, from node 0."""
        self._report("ready", pb.SupervisorUp(ready=pb.NodeReady(attempt=attempt, meeting=meeting)))

    def away(self) -> float:
        """Return the seconds since the last session ended; 0.0 during a session. Callable from any thread."""
        return self._stream.away_for

    def close(self, flush: float = TIMING.flush) -> None:
        """End the stream after waiting up to `flush` seconds until the lighthouse has received every report."""
        loop.call(self.finish(flush), flush + 5.0, "closing the line to the lighthouse")

    async def finish(self, flush: float) -> None:
        """Do the work of `close`, on the loop."""
        await self._confirm(flush)
        await self._stream.close(0.2)
        self._notifier.close()

    # --- on the loop --------------------------------------------------------------------------------------------------

    def _report(self, kind: str, up: pb.SupervisorUp) -> None:
        data = up.SerializeToString()

        def remember_and_send() -> None:
            self._reports.pop(kind, None)
            if kind.startswith(("started", "exited")):
                self._reports.pop("halted", None)  # it belongs to another attempt, or to one that is over
            self._reports[kind] = data
            exits = [k for k in self._reports if k.startswith("exited")]
            for old in exits[:-KEPT_EXITS]:
                del self._reports[old]
            self._send(data)

        loop.post(remember_and_send)

    def _send(self, data: bytes) -> None:
        self._count()
        self._stream.send(data)

    def _count(self) -> None:
        self._unanswered += 1

    def _up(self) -> None:
        self._unanswered = 0
        for data in self._reports.values():
            self._send(data)

    async def _confirm(self, seconds: float) -> None:
        """Wait until every report is answered, in this session or the next."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while self._reports and self._stop is None and clock() < deadline:
            if self._unanswered <= 0:
                return
            await asyncio.sleep(0.005)

    def _hear(self, data: bytes) -> None:
        down = messages.parse(pb.SupervisorDown, data, "lighthouse's message")
        kind = down.WhichOneof("kind")
        if kind == "stop":
            self._stopped(int(down.stop.code), limits.clean(down.stop.sentence[: limits.MAX_TEXT]))
        elif kind == "refused":
            raise RefusedError(limits.clean(down.refused.sentence[: limits.MAX_TEXT]))
        elif kind == "begin":
            begin = supervisors.NODE_DOWN.decode(down, session=0)
            self._begin(begin.attempt, begin.attempt_token, begin.meeting)
        elif kind == "over":
            over = supervisors.NODE_DOWN.decode(down, session=0)
            self._notifier.post(partial(self.callbacks.over, over.attempt_token, over.code, over.reason))
        elif kind == "order":
            asked = supervisors.ORDER.decode(down.order, group=self.group)
            self._notifier.post(partial(self.callbacks.order, asked.kind, asked.attempt_token, asked.sentence))
        elif kind == "next":
            number = limits.check_whole(down.next, "attempt", limits.MAX_ATTEMPT)
            self._notifier.post(partial(self.callbacks.number, number))
        elif kind == "pong":
            self._unanswered -= 1

    def _begin(self, attempt: int, attempt_token: str, meeting: str) -> None:
        """Take the order to start an attempt at once, on this thread, so that the node isn't reported ready again."""
        if "ready" not in self._reports:
            return  # the order was sent twice
        del self._reports["ready"]
        # The lighthouse starts a new attempt only after it knows the end of the former one.
        self._reports.pop("exited", None)
        self._reports.pop("halted", None)
        begun = pb.AttemptStarted(attempt=attempt, attempt_token=attempt_token)
        started = pb.SupervisorUp(started=begun).SerializeToString()
        self._reports["started"] = started
        self._send(started)
        self._notifier.post(partial(self.callbacks.begin, attempt, attempt_token, meeting))

    def _down(self, reason: str) -> None:
        if self._stop is None:  # after the order to stop, the session's end is expected
            if len(self._stream.addresses) > 1:
                log.warning("The lighthouse at %s is away (%s); trying again.", self._stream.address.url, reason)
            else:
                log.warning("The lighthouse is away (%s); trying again.", reason)

    def _refused(self, error: TorchftXError) -> None:
        self._stopped(REFUSED_CODE, str(error))

    def _stopped(self, code: int, sentence: str) -> None:
        if self._stop is None:
            self._stop = (code, sentence)
            self._notifier.post(partial(self.callbacks.stop, code, sentence))

    def _welcome(self, data: bytes) -> Keepalive:
        return rhythm(_read_welcome(data))


def _read_welcome(data: bytes) -> pb.Welcome:
    """Return the welcome from the answer to hello. Raises `RefusedError` for any other answer."""
    down = messages.parse(pb.SupervisorDown, data, "lighthouse's answer to hello")
    if down.WhichOneof("kind") == "refused":
        raise RefusedError(limits.clean(down.refused.sentence[: limits.MAX_TEXT]))
    if down.WhichOneof("kind") != "welcome":
        raise RefusedError("The lighthouse answered hello with something else; is it another program?")
    return down.welcome
