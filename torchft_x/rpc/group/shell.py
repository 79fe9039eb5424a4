"""The shell of the group machine: its session to the lighthouse, its open calls, its clock.

It has no rules of its own: `core.group.machine` decides, and this module carries out. Other ranks call through
`service.GroupService`, on the loop. Group rank 0 calls on its own thread (`submit`): inside a grant the machine answers
at once, and needs neither the loop nor a socket. So a lock guards the machine, and its effects are carried out on the
loop only, in the order in which they were decided.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.group.quorum_deadline import QuorumDeadline
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import group as m
from torchft_x.core.messages.group import QuorumReply, VoteReply
from torchft_x.core.messages.lighthouse import (
    Fence,
    Join,
    Leave,
    Paused,
    Progress,
    Refuse,
    RevokeQuorum,
    SendWaits,
    Suspected,
)
from torchft_x.errors import DeadlineError, FencedError, RefusedError, TorchftXError, UnreachableError
from torchft_x.net import Address
from torchft_x.observe.view.facts import Facts
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.session import Keepalive, ReconnectingStream, StreamCallbacks, rhythm
from torchft_x.rpc.transport.token import metadata
from torchft_x.timing import POLL

log = logging.getLogger(__name__)


TELL_SOON, TELL = 0.3, 2.0
"""Seconds until a group's facts are sent without another message: urgent ones, and the others."""

Waiter = asyncio.Future[Any] | concurrent.futures.Future[Any]
Call = m.Ask | m.Vote
Push = RevokeQuorum | m.PushEnd


OnRevoked = Callable[[int, tuple[str, ...], str, bool], None]
"""Called with (quorum id, lost replica ids, reason, whether they left gracefully) to release that quorum's collectives
at once."""
OnEnd = Callable[[str, bool], None]
"""Called with (sentence, fenced) when this group must stop."""


class FactsSource(Protocol):
    """Source of a group's facts about itself, which are shown to people."""

    urgent: bool
    """Whether people may be waiting for the facts: a state is being copied, or an event has happened."""

    def take(self, now: float) -> Facts | None:
        """Return the new facts, or None. It runs on the loop, so it must be quick. `now`: monotonic seconds."""


class GroupShell:
    """Shell of one group's machine. Delivers events to it and carries out its effects.

    `on_push` is called with an event that every rank must know at once: a `RevokeQuorum` or the final `PushEnd`.
    """

    def __init__(
        self,
        config: GroupConfig,
        lighthouses: Sequence[Address],
        token: str | None,
        on_push: Callable[[Push], None],
        seek: Callable[[], Sequence[Address]] | None,
    ) -> None:
        """Prepare a session to one of the `lighthouses`. `seek`: as of `ReconnectingStream`."""
        self.config = config
        self._on_push = on_push
        self._loop = asyncio.get_running_loop()  # carries out the effects
        self._lock = threading.Lock()  # guards _machine, _effects, _calls, _ranks; nothing waits or does I/O under it
        self._machine = Group(config, time.monotonic())
        self.deadline = QuorumDeadline(time.monotonic())  # of open asks; on the loop, except for `prolonged`
        self._effects: deque[m.GroupEffect] = deque()  # effects decided and not yet carried out
        self._calls: dict[int, Waiter] = {}  # open asks and votes of the ranks
        self._ranks: dict[int, int] = {}  # group rank by open call
        self.last_revoked: RevokeQuorum | None = None  # repeated to a rank whose watch starts late
        self.end: m.PushEnd | None = None  # set when this group must stop; final
        self._end_error: TorchftXError | None = None  # error with which all calls fail; None: the effect decides
        self.connected = False  # there is a session with the lighthouse
        self.others_train = False  # others trained already without this group at its first session
        self.heartbeat_timeout = 0.0  # seconds of silence that the lighthouse takes for death; 0 before the welcome
        self._pause: tuple[float, str] | None = None  # this group's pause: its end (monotonic) and reason
        self.facts: FactsSource | None = None  # this group's facts; set once, by the training process
        self._told_at = 0.0  # when `facts` was last asked (monotonic)
        self._pong = asyncio.Event()  # set when the lighthouse answers a ping or a pause
        self._pinged: deque[float] = deque()  # send times of this session's unanswered pings and pauses (monotonic)
        self._stood: asyncio.Future[None] = self._loop.create_future()  # done at the first session, or its refusal
        callbacks = StreamCallbacks(
            hello=self._hello,
            welcome=self._welcome,
            up=self._session_up,
            message=self._session_message,
            down=self._session_down,
            refused=self._session_refused,
            pinged=self._on_ping,
            eager=self._goes_on_alone,
        )
        self._ping = ping = pb.Up(ping=pb.Ping()).SerializeToString()
        method = f"/{grpc_options.SESSION}/Session"
        first, *others = lighthouses
        self._stream = ReconnectingStream(first, method, metadata(token), ping, callbacks, others=others, seek=seek)
        self._ticker: asyncio.Task[None] | None = None  # runs `_tick`; set by `open`

    # --- start and end ----------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Start, and wait up to `timeout` seconds for the first session.

        Raises `UnreachableError`, or the lighthouse's refusal (`TokenError`, `RefusedError`, `FencedError`)."""
        self._ticker = asyncio.ensure_future(self._tick())
        self._stream.start()
        await asyncio.wait({self._stood}, timeout=timeout)
        if self._stood.done() and self._stood.exception() is None:
            return
        await self.close(0.0)
        if self._stood.done():
            self._stood.result()
        why, others = self._stream.last_failure.rstrip("."), ""
        if len(self._stream.addresses) > 1:
            others = f", or with another one of {self._stream.names()}"
        raise UnreachableError(
            f"No session with the lighthouse at {self._url}{others} within {timeout:g} s ({why}); is it running, is it "
            "torchft_x's (not torchft's own), and is TORCHFT_LIGHTHOUSE right?"
        )

    async def close(self, flush: float, *, early: bool = False, lingers: str = "") -> None:
        """Leave gracefully, within `flush` seconds, and fail open calls. `early`, `lingers`: see `m.Leave`."""
        self._feed(m.Leave(early, lingers))
        self.connected = False
        await self._stream.close(flush)
        if self._ticker is not None:
            self._ticker.cancel()
        with self._lock:
            calls = tuple(self._calls)
        self._fail(calls, "The group server is shut down.", retry=False)

    @property
    def _url(self) -> str:
        """URL of the present or the last lighthouse."""
        return self._stream.address.url

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            try:
                self._feed(Tick())
                self._tell()
                for call in self.deadline.expired(self._machine.incomplete, time.monotonic()):
                    self.give_up(call)
            except Exception:  # a defect must be logged, and must not stop the clock
                log.exception("a tick of the group server failed")

    # --- calls --------------------------------------------------------------------------------------------------------

    def take(self, event: Call, waiter: Waiter) -> None:
        """Take one rank's ask (`waiter` gets a `QuorumReply`) or vote (a `VoteReply`). On the loop."""
        self._register(event, waiter)
        self._feed(event)

    def submit(self, ask: m.Ask) -> QuorumReply | concurrent.futures.Future[Any]:
        """Take rank 0's ask, from any thread. Return the answer if there is one at once, else its future."""
        with self._lock:
            effects = self._handle(ask)
            answer: QuorumReply | concurrent.futures.Future[Any] | None = None
            if effects and isinstance(effects[0], QuorumReply) and effects[0].calls == (ask.call,):
                answer = effects[0]
                effects = effects[1:]  # usually empty
            else:
                answer = concurrent.futures.Future()
                self._register(ask, answer)
            self._effects.extend(effects)
        if effects:
            self._loop.call_soon_threadsafe(self._carry_out_all)
        return answer

    def vote(self, vote: m.GroupVote | m.CrossVoteEnded) -> VoteReply:
        """Take the votes of all ranks, or the end of the vote between groups, and return the group's answer.

        Callable from any thread.
        """
        with self._lock:
            (answer,) = self._handle(vote)
        assert isinstance(answer, VoteReply), "both are answered at once"
        return answer

    def _register(self, event: Call, waiter: Waiter) -> None:
        self._calls[event.call] = waiter
        self._ranks[event.call] = event.rank
        if isinstance(event, m.Ask) and event.usual > 0:
            self._loop.call_soon_threadsafe(self._endure, event.call, event.usual, time.monotonic())

    def _endure(self, call: int, usual: float, since: float) -> None:
        """Start the deadline of an open ask, unless it was answered meanwhile. On the loop."""
        if call in self._calls:
            self.deadline.begin(call, usual, since)

    def give_up(self, call: int) -> None:
        """Fail an ask that has waited for too long, unless it was answered meanwhile. On the loop."""
        waiter, sentence = self._calls.get(call), self.why_no_quorum()
        self.gone(call)
        if waiter is not None and not waiter.done():
            waiter.set_exception(DeadlineError(sentence))

    async def pause(self, seconds: float, reason: str) -> None:
        """Announce a pause of this group, or its end (0 seconds).

        Wait up to 1 s until the lighthouse has received it: the process may then be unable to send for a while."""
        self._pause = (time.monotonic() + seconds, reason) if seconds > 0 else None
        self._pong.clear()
        if self._stream.is_up:
            self._on_ping()
            self._stream.send(messages.up_bytes(Paused(0, seconds, reason)))
            await asyncio.wait({asyncio.ensure_future(self._pong.wait())}, timeout=1.0)

    def suspect(self, replica_ids: tuple[str, ...]) -> None:
        """Report a broken connection to these members to the lighthouse at once: the join may take a while."""
        self._stream.send(messages.up_bytes(Suspected(0, replica_ids)))

    def gone(self, call: int) -> None:
        """Forget a call whose caller doesn't listen any more. On the loop."""
        if self._close_call(call) is not None:
            self._feed(m.CallGone(call))

    def _close_call(self, call: int) -> Waiter | None:
        self._ranks.pop(call, None)
        self.deadline.end(call)
        return self._calls.pop(call, None)

    def story(self) -> list[str]:
        """Return the group's recent decisions and their reasons. Callable from any thread."""
        with self._lock:
            return self._machine.story(time.monotonic())

    def checkpoint_metadata(self, rank: int) -> str:
        """Return where this rank serves its state. Raises `RefusedError` if the rank has not reported it."""
        metadata = self._machine.metadata(rank)
        if metadata is None:
            raise RefusedError(
                f"Rank {rank} of {self.config.replica_id} has not told where it serves its state; "
                f"the group has {self.config.world_size} ranks."
            )
        return metadata

    def why_no_quorum(self) -> str:
        """Return the sentence for a caller whose deadline has passed without a quorum."""
        if not self._stream.is_up:
            return f"No quorum in time: {self._stream.away()}."
        what = f": {self.deadline.reason}" if self.deadline.reason else " for other groups; its log says for whom."
        return f"No quorum in time: {self._missing('asked for one')}the lighthouse at {self._url} waits{what}"

    def why_no_vote(self) -> str:
        return f"No decision in time: {self._missing('voted') or 'the group server is busy'}".rstrip("; ") + "."

    def _missing(self, done: str) -> str:
        """Return a phrase that names the ranks of this group without an open call; '' if all have one."""
        with self._lock:
            there = set(self._ranks.values())
        missing = sorted(set(range(self.config.world_size)) - there)
        if not missing:
            return ""
        ranks = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"group rank {ranks} of {self.config.world_size} has not {done}; "

    # --- events in, effects out ---------------------------------------------------------------------------------------

    def _feed(self, event: m.GroupEvent) -> None:
        """Deliver an event to the machine and carry out its effects. On the loop."""
        with self._lock:
            self._effects.extend(self._handle(event))
        self._carry_out_all()

    def _handle(self, event: m.GroupEvent) -> list[m.GroupEffect]:
        """Deliver an event to the machine and return its effects. The caller holds the lock."""
        effects = self._machine.handle(event, time.monotonic())
        for effect in effects:
            if isinstance(effect, m.PushEnd):
                self.end = effect  # set before `_fail`, which derives the calls' error from it
        return effects

    def _carry_out_all(self) -> None:
        while self._effects:
            self._carry_out(self._effects.popleft())

    def _carry_out(self, effect: m.GroupEffect) -> None:
        if isinstance(effect, (Join, Progress, Leave)):
            self._stream.send(messages.up_bytes(effect) + self._facts_bytes())
        elif isinstance(effect, (QuorumReply, VoteReply)):
            self._resolve(effect)
        elif isinstance(effect, m.FailCalls):
            self._fail(effect.calls, effect.sentence, effect.retry)
        elif isinstance(effect, RevokeQuorum):
            self.last_revoked = effect
            self._on_push(effect)
        elif isinstance(effect, m.PushEnd):
            self._on_push(effect)
        elif isinstance(effect, Note):
            log.info("%s", effect.text)

    def _resolve(self, reply: QuorumReply | VoteReply) -> None:
        if isinstance(reply, QuorumReply):
            self.deadline.reason = ""
        for call in reply.calls:
            waiter = self._close_call(call)
            if waiter is not None and not waiter.done():
                waiter.set_result(reply)

    def _fail(self, calls: Iterable[int], sentence: str, retry: bool) -> None:
        kind: type[TorchftXError] = UnreachableError if retry else RefusedError
        if self._end_error is not None:
            kind = type(self._end_error)
        elif self.end is not None and self.end.fenced:
            kind = FencedError
        for call in calls:
            waiter = self._close_call(call)
            if waiter is not None and not waiter.done():
                waiter.set_exception(kind(sentence))

    def _facts_bytes(self) -> bytes:
        """Return the group's new facts as bytes to append to a message; empty if there are none."""
        source = self.facts
        if source is None or not self._stream.is_up:
            return b""
        self._told_at = now = time.monotonic()
        facts = source.take(now)
        return b"" if facts is None else messages.facts_bytes(facts)

    def _tell(self) -> None:
        """Send the group's facts with a ping if nothing has carried them lately: while it copies a state or waits."""
        source = self.facts
        if source is None or not self._stream.is_up:
            return
        since = time.monotonic() - self._told_at
        if since >= (TELL_SOON if source.urgent else TELL) and (facts := self._facts_bytes()):
            self._on_ping()
            self._stream.send(self._ping + facts)

    # --- session ------------------------------------------------------------------------------------------------------

    def _hello(self) -> bytes:
        return pb.Up(hello=messages.hello_to_proto(self._machine.hello(time.monotonic()))).SerializeToString()

    def _welcome(self, data: bytes) -> Keepalive:
        """Read the keep-alive timing in a welcome. Another answer ends this group: `RefusedError` or `FencedError`."""
        down = messages.parse(pb.Down, data, "lighthouse's answer to hello")
        if down.WhichOneof("kind") == "welcome":
            if not self._stood.done():
                self.others_train = down.welcome.others_train
            self.heartbeat_timeout = rhythm(down.welcome).limit
            return rhythm(down.welcome)
        self._session_message(data)
        raise RefusedError("The lighthouse answered hello with something else; is it another program?")

    def _goes_on_alone(self) -> bool:
        with self._lock:
            return self._machine.goes_on_alone(time.monotonic())

    def _on_ping(self) -> None:
        """Record that a ping is sent, or a pause, which the lighthouse answers in the same way."""
        self._pinged.append(time.monotonic())

    def _session_down(self, reason: str) -> None:
        self.connected = False
        log.warning("The lighthouse at %s is away (%s); trying again.", self._url, reason)
        self.deadline.session(False, time.monotonic())
        self._feed(m.SessionDown(reason))

    def _session_up(self) -> None:
        self.connected = True
        if self._stood.done():
            several = len(self._stream.addresses) > 1
            log.warning("The lighthouse at %s is %s.", self._url, "there" if several else "back")
        else:
            self._stood.set_result(None)
        self.deadline.session(True, time.monotonic())
        self._pinged.clear()
        if self._pause is not None and (left := self._pause[0] - time.monotonic()) > 0:
            self._on_ping()
            self._stream.send(messages.up_bytes(Paused(0, left, self._pause[1])))
        self._feed(m.SessionUp())

    def _session_message(self, data: bytes) -> None:
        down = messages.parse(pb.Down, data, "lighthouse's message")
        kind = down.WhichOneof("kind")
        if kind == "pong":
            self._pong.set()
            if self._pinged:  # the lighthouse answers in order
                self._feed(m.PongArrived(self._pinged.popleft()))
        event = messages.down_to_event(down)
        if isinstance(event, Fence):
            self._feed(event)
            raise FencedError(self.end.sentence if self.end else "A newer attempt of this group is running.")
        if isinstance(event, Refuse):
            raise RefusedError(event.sentence)
        if isinstance(event, SendWaits):
            self.deadline.waits(event.reason, event.pauses, time.monotonic())
        elif event is not None:
            self._feed(event)

    def _session_refused(self, error: TorchftXError) -> None:
        """End this group after the lighthouse's refusal: every call fails with its reason, now and later."""
        self.connected = False
        if not isinstance(error, FencedError):
            self._end_error = error
            self._feed(Refuse(str(error)))
        if not self._stood.done():
            self._stood.set_exception(error)
