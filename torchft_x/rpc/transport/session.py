"""A client's stream to the lighthouse that reconnects whenever it breaks: hello, welcome, messages, pings.

With several lighthouses it connects to one at a time: first to the one that served last, and after each connect that
fails to the next. It closes the stream to the former one before it opens the next, and drops messages that still arrive
from the former one.

Used by group servers and supervisors. Everything runs on the loop's thread, including the callbacks, which must not
block.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from torchft_x.core.group import reconnect
from torchft_x.errors import RefusedError, StrangerError, TokenError, TorchftXError, UnreachableError
from torchft_x.net import Address
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.grpc_errors import error_from, error_of
from torchft_x.rpc.transport.stream import Outbox
from torchft_x.rpc.transport.token import Metadata
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)
_random = random.Random()  # the process's own generator is the script's

MISSED_PINGS = 5
"""Least number of pings in a row without an answer after which the stream counts as broken, whatever TCP reports."""
LOOKS = 3
"""Checks for unanswered messages in the time from one ping to the next."""
EAGER_LOOKS = 5
"""Checks in a row that find a message unanswered, after which the stream is broken for an owner that would go on
alone."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Timing of signs of life: the client pings every `ping` s, and tolerates `limit` s of the lighthouse's silence."""

    ping: float
    limit: float

    @property
    def pings(self) -> int:
        """Number of unanswered pings after which the stream is broken."""
        return max(MISSED_PINGS, round(self.limit / self.ping))

    @property
    def poll(self) -> float:
        """Seconds between two checks for unanswered messages."""
        return self.ping / LOOKS


def rhythm(welcome: pb.Welcome) -> Keepalive:
    """Read the keep-alive timing from the answer to hello. Raises `RefusedError` if it is not a valid time."""
    limit = limits.check_heartbeat(welcome.heartbeat_timeout_s)
    ping = limits.check_heartbeat(welcome.ping_s) if welcome.ping_s else limit / MISSED_PINGS
    return Keepalive(min(ping, limit / MISSED_PINGS), limit)


@dataclass(frozen=True, kw_only=True)
class StreamCallbacks:
    """Callbacks of a stream's owner."""

    hello: Callable[[], bytes]
    """Returns the first message of a new session."""
    welcome: Callable[[bytes], Keepalive]
    """Checks the answer to hello. Raises `RefusedError` for a refusal."""
    up: Callable[[], None]
    """Called when the session is established."""
    message: Callable[[bytes], None]
    """Takes a message after the welcome. Raises `RefusedError` if it ends all sessions."""
    down: Callable[[str], None]
    """Called with the reason when an established session has ended. The stream reconnects."""
    refused: Callable[[TorchftXError], None]
    """Called when the lighthouse refuses this client (token, version, ...). The stream does not reconnect."""
    pinged: Callable[[], None] = lambda: None
    """Called before each ping."""
    eager: Callable[[], bool] = lambda: False
    """Returns whether the owner waits for the lighthouse and would go on at once without a session."""


class ReconnectingStream:
    """Self-reconnecting stream to the lighthouse, on the loop's thread. `send` drops messages without a session."""

    def __init__(
        self,
        address: Address,
        method: str,
        metadata: Metadata,
        ping: bytes,
        callbacks: StreamCallbacks,
        *,
        others: Sequence[Address] = (),
        seek: Callable[[], Sequence[Address]] | None = None,
    ) -> None:
        """Prepare a stream to `address`, or to one of `others`, the lighthouses after the first of a list.

        `seek` returns their present addresses (empty: unknown), on another thread, when one can't be reached."""
        self.address = address  # address of the present or the last lighthouse
        self.addresses = (address, *others)  # addresses of all lighthouses
        self._at = 0  # index in `addresses` of the lighthouse that is connected or is tried next
        self._seek = seek
        self._method = method  # full name of the stream's method
        self._metadata = metadata  # carries the token
        self._ping = ping  # message without content; the lighthouse answers it
        self._callbacks = callbacks
        self._outbox: Outbox | None = None  # outgoing messages of the established session; None: there is no session
        self._task: asyncio.Task[None] | None = None  # runs `_keep`
        self._closing = False  # True: no session is opened any more
        self._sent = 0  # messages sent in the present session; tells `_beat` whether we were idle
        self._answered = 0  # value of `_sent` when the lighthouse was last heard
        self._silent = 0  # checks since then that found a message unanswered
        self._hung: str | None = None  # why we gave up the present session; None: we did not
        self._has_stood = False  # a session was established with any of the lighthouses
        self.away_since: float | None = time.monotonic()  # end of the last session (monotonic); None while there is one
        self.last_failure = "not tried yet"  # why the last connect or session ended

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._keep())

    @property
    def is_up(self) -> bool:
        return self._outbox is not None

    def send(self, data: bytes) -> None:
        if self._outbox is not None:
            self._sent += 1
            self._outbox.put(data)

    async def close(self, flush: float) -> None:
        """End our side of the session at once. Wait up to `flush` seconds until the lighthouse has read everything."""
        self._closing = True
        if self._task is None:
            return
        if self._outbox is not None and flush > 0:
            self._outbox.end()
            await asyncio.wait({self._task}, timeout=flush)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=1.0)

    @property
    def away_for(self) -> float:
        """Seconds without a session; 0.0 during one. Readable from any thread."""
        since = self.away_since
        return 0.0 if since is None else time.monotonic() - since

    def away(self) -> str:
        """Return a phrase for people: for how long there has been no session, and why."""
        seconds, why = f"{self.away_for:.1f} s", self.last_failure.rstrip(".")
        if len(self.addresses) > 1:
            return f"none of the lighthouses {self.names()} has been there for {seconds} ({self.address.url}: {why})"
        return f"the lighthouse at {self.address.url} has been away for {seconds} ({why})"

    def names(self) -> str:
        """Return all addresses as a text for people."""
        return ", ".join(a.url for a in self.addresses)

    # --- the keeper ---------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = TIMING.reconnect_first
        while not self._closing:
            addresses = self.addresses
            try:
                await self._session()
                self.last_failure = "it ended the session"
            except RefusedError as e:
                self.last_failure = str(e)
                if not self._is_a_stranger(e):
                    if self._outbox is not None:
                        self._outbox, self.away_since = None, time.monotonic()
                    self._callbacks.refused(e)  # and not down
                    return
            except TorchftXError as e:
                self.last_failure = _short(e)
            except Exception:  # a defect of ours must be logged, and must not end this task
                log.exception("the session with the lighthouse at %s failed", self.address.url)
                self.last_failure = "an error of our own, see the log"
            if not (stood := self._set_down()):
                self._at = (self._at + 1) % len(self.addresses)
                await self._look_anew()
            moved = self.addresses is not addresses
            pause = reconnect.pause(None if stood or moved else pause, self.away_for)
            if not self._closing:
                await asyncio.sleep(pause * _random.uniform(0.5, 1.0))  # so that 500 groups don't come at once

    async def _look_anew(self) -> bool:
        """Look up the lighthouses' addresses again, since one may have moved to another host. Return whether one has."""
        if self._seek is None:
            return False
        try:
            found = tuple(await asyncio.wait_for(asyncio.to_thread(self._seek), TIMING.seek))
        except asyncio.TimeoutError:
            return False
        if not found or found == self.addresses:
            return False
        log.info("The lighthouse has moved to %s.", ", ".join(a.url for a in found))
        self.addresses, self._at = found, 0
        return True

    async def _watch_move(self) -> None:
        """Return when the lighthouse has moved."""
        while not await self._look_anew():
            await asyncio.sleep(reconnect.pause(TIMING.reconnect_last, self.away_for))

    def _is_a_stranger(self, error: RefusedError) -> bool:
        """Return whether another program may have the address of a lost lighthouse, so that the next may serve.

        If no session was ever established, the list itself is wrong."""
        several = (len(self.addresses) > 1 or self._seek is not None) and self._has_stood and self._outbox is None
        return several and isinstance(error, (StrangerError, TokenError))

    def _set_down(self) -> bool:
        """Forget the session that ended. Return whether it had been established."""
        if self._outbox is None:
            return False
        self._outbox = None
        self.away_since = time.monotonic()
        if not self._closing:
            self._callbacks.down(self.last_failure)
        return True

    async def _session(self) -> None:
        """Run one session, from connect to end. Raises `TorchftXError` if it did not end cleanly."""
        self.address = self.addresses[self._at]
        what = f"lighthouse at {self.address.url}"
        self._hung = None
        channel = grpc_options.aio_channel(self.address)
        helpers: list[asyncio.Task[Any]] = []
        try:
            call = channel.stream_stream(self._method)(metadata=self._metadata)
            greeting = asyncio.ensure_future(self._greet(call, what))
            # A host without power would hold the connect up for a second.
            helpers = [greeting, asyncio.ensure_future(self._watch_move())]
            await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                raise UnreachableError("It has moved.")
            helpers.pop().cancel()
            first = greeting.result()
            if first is grpc.aio.EOF:
                await _check_end(call, what)
                return
            beat = self._callbacks.welcome(first)
            outbox = self._outbox = Outbox(call.write)
            self.away_since, self._sent, self._answered, self._silent = None, 0, 0, 0
            self._has_stood = True
            helpers = [asyncio.ensure_future(_write(call, outbox)), asyncio.ensure_future(self._beat(call, beat))]
            self._callbacks.up()
            while (data := await call.read()) is not grpc.aio.EOF:
                self._answered, self._silent = self._sent, 0
                self._callbacks.message(data)
            await _check_end(call, what)
        except grpc.RpcError as e:
            raise error_of(e, what) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as e:  # the stream broke under a write
            raise UnreachableError(f"The {what} ended the session ({e}).") from None
        except asyncio.CancelledError:
            if self._hung is None:
                raise  # we are closing
            raise UnreachableError(self._hung) from None
        finally:
            for helper in helpers:
                helper.cancel()
            await channel.close()

    async def _greet(self, call: Any, what: str) -> Any:
        """Send hello and return the answer."""
        await call.write(self._callbacks.hello())
        try:
            return await asyncio.wait_for(call.read(), TIMING.welcome)
        except asyncio.TimeoutError:
            raise UnreachableError(f"The {what} took the connection but did not answer our hello.") from None

    async def _beat(self, call: Any, beat: Keepalive) -> None:
        """Ping when idle, and while a message is unanswered: at each check if the owner is eager, else as when idle.

        Silence is counted in checks of our own, so that a starved process doesn't blame the lighthouse."""
        sent, idle = self._sent, 0
        while True:
            await asyncio.sleep(beat.poll)
            idle = idle + 1 if self._sent == sent else 0
            due = idle >= LOOKS
            if self._sent > self._answered:
                self._silent += 1
                eager = self._callbacks.eager()
                if self._silent >= (EAGER_LOOKS if eager else beat.pings * LOOKS):
                    self._hung = f"it was silent for {self._silent * beat.poll:.3g} s"
                    call.cancel()
                    return
                due = eager or due or self._silent % LOOKS == 0
            if due:
                self._callbacks.pinged()
                self.send(self._ping)
                idle = 0
            sent = self._sent


async def _write(call: Any, outbox: Outbox) -> None:
    try:
        await outbox.run()
        await call.done_writing()
    except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        pass  # the reading side gets the stream's end, with its reason


async def _check_end(call: Any, what: str) -> None:
    """Raise the error that the status of an ended stream stands for, unless it is OK."""
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise error_from(code, await call.details(), what)


def _short(error: TorchftXError) -> str:
    """Return a connection error's reason without the address, which the caller's sentence names."""
    text = str(error)
    return "connection refused" if "refused" in text.lower() else text.rstrip(".")
