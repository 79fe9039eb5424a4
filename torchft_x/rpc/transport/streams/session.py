"""A stream to the lighthouse that is there again whenever it can be: hello, welcome, messages, pings, reconnects.

Of several lighthouses it is with one at a time, `core.group.lighthouse_choice` says with which. The stream to the former one is closed
before the next is opened, and nothing that it still brings is passed on.

Used by group servers and supervisors. Everything runs on the loop's thread, the callbacks too: they must not block.
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

from torchft_x.core.group import lighthouse_choice
from torchft_x.core.group.lighthouse_choice import FailoverPolicy
from torchft_x.errors import RefusedError, StrangerError, TokenError, TorchftXError, UnreachableError
from torchft_x.net import Address
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.grpc_errors import error_from, error_of
from torchft_x.rpc.transport.streams.outbox import Outbox
from torchft_x.rpc.transport.token import Metadata
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

MISSED_PINGS = 5
"""So many pings in a row, at the least, without a word from the other side: the stream is broken, whatever TCP says."""
LOOKS = 3
"""In the time from one ping to the next."""
EAGER_LOOKS = 5
"""So many in a row that find something unanswered are enough for an owner that would go on at once without the other side."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """What the lighthouse expects of a stream: a sign of life every `ping` seconds. Its own may be missing for `limit`."""

    ping: float
    limit: float

    @property
    def pings(self) -> int:
        """So many without an answer are too many."""
        return max(MISSED_PINGS, round(self.limit / self.ping))

    @property
    def look(self) -> float:
        """Seconds from one look at what is unanswered to the next."""
        return self.ping / LOOKS


def rhythm(welcome: pb.Welcome) -> Keepalive:
    """From the answer to hello. Raises `RefusedError` for a senseless one."""
    limit = limits.check_heartbeat(welcome.heartbeat_timeout_s)
    ping = limits.check_heartbeat(welcome.ping_s) if welcome.ping_s else limit / MISSED_PINGS
    return Keepalive(min(ping, limit / MISSED_PINGS), limit)


@dataclass(frozen=True, kw_only=True)
class StreamCallbacks:
    """What the owner of an uplink knows how to do."""

    hello: Callable[[], Sequence[bytes]]
    """The first messages of a new session."""
    welcome: Callable[[bytes], Keepalive]
    """Check the answer to hello. Raises `RefusedError` for a refusal."""
    up: Callable[[], None]
    """The session stands."""
    message: Callable[[bytes], None]
    """A message after the welcome. Raises `RefusedError` if it ends all sessions."""
    down: Callable[[str], None]
    """The session that stood is gone, for this reason. It will be tried again."""
    refused: Callable[[TorchftXError], None]
    """The lighthouse won't have us (token, version, ...). It isn't tried again."""
    pinged: Callable[[], None] = lambda: None
    """A ping is on its way."""
    eager: Callable[[], bool] = lambda: False
    """Whether the owner waits for the other side, and would go on at once without a session."""


class ReconnectingStream:
    """See the module. `start` and `close` on the loop's thread; `send` there too, dropped while no session stands."""

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
        """`others`: the lighthouses after the first of a list. `seek`: where they are by now (empty: nobody knows), asked on
        another thread when one can't be reached."""
        self.address = address  # of the lighthouse that is spoken to, or was last
        self.addresses = (address, *others)  # all of the list
        self.wander = FailoverPolicy(len(self.addresses))  # which of them it is
        self._seek = seek  # see above
        self._method = method  # full name of the stream
        self._metadata = metadata  # the token
        self._ping = ping  # message without content; the other side answers it
        self._callbacks = callbacks  # see UplinkCallbacks
        self._outbox: Outbox | None = None  # of the standing session
        self._task: asyncio.Task[None] | None = None  # the connection keeper
        self._closing = False  # no session is opened any more
        self._sent = 0  # messages given to the present session; tells the pinger whether we were idle
        self._answered = 0  # of these, when the other side was last heard
        self._silent = 0  # looks since then that found something unanswered
        self._hung: str | None = None  # why we gave the present session up, if we did
        self._has_stood = False  # a session, with any of the list
        self.away_since: float | None = time.monotonic()  # when the last session ended; None while one stands
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
        """End the session: our side at once, and wait up to `flush` seconds for the other to have read everything."""
        self._closing = True
        if self._task is None:
            return
        if self._outbox is not None and flush > 0:
            self._outbox.end()
            await asyncio.wait({self._task}, timeout=flush)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=1.0)

    def away(self) -> str:
        """How long no session has stood and why, for people."""
        seconds = 0.0 if self.away_since is None else time.monotonic() - self.away_since
        if len(self.addresses) > 1:
            why = f"{self.address.url}: {self.last_failure.rstrip('.')}"
            return f"none of the lighthouses {self.names()} has been there for {seconds:.1f} s ({why})"
        return (
            f"the lighthouse at {self.address.url} has been away for {seconds:.1f} s ({self.last_failure.rstrip('.')})"
        )

    def names(self) -> str:
        """All addresses, for people."""
        return ", ".join(a.url for a in self.addresses)

    # --- the keeper ----------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = TIMING.reconnect_first
        while not self._closing:
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
            except Exception:  # a defect of ours must not end the keeper without a word
                log.exception("the session with the lighthouse at %s failed", self.address.url)
                self.last_failure = "an error of our own, see the log"
            stood = self._set_down()
            if not stood:
                self.wander.failed(time.monotonic())
                await self._look_anew()
            else:
                self.wander.ended(time.monotonic())
            away = 0.0 if self.away_since is None else time.monotonic() - self.away_since
            pause = lighthouse_choice.pause(None if stood else pause, away)
            if not self._closing:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # so that 500 groups don't come at once

    async def _look_anew(self) -> None:
        """The lighthouse may have moved to another host."""
        if self._seek is None:
            return
        try:
            found = tuple(await asyncio.wait_for(asyncio.to_thread(self._seek), TIMING.seek))
        except asyncio.TimeoutError:
            return
        if found and found != self.addresses:
            log.info("The lighthouse has moved to %s.", ", ".join(a.url for a in found))
            self.addresses, self.wander = found, FailoverPolicy(len(found))

    def _is_a_stranger(self, error: RefusedError) -> bool:
        """Whether another program has got the address of a lighthouse that was lost: the next of the list may serve. A list that
        nobody has ever answered is wrong, though."""
        several = (len(self.addresses) > 1 or self._seek is not None) and self._has_stood and self._outbox is None
        return several and isinstance(error, (StrangerError, TokenError))

    def _set_down(self) -> bool:
        """Forget the session that ended; True if one had stood."""
        if self._outbox is None:
            return False
        self._outbox = None
        self.away_since = time.monotonic()
        if not self._closing:
            self._callbacks.down(self.last_failure)
        return True

    async def _session(self) -> None:
        """One session, from connect to end. Raises an error of ours if it did not end cleanly."""
        self.address = self.addresses[self.wander.at]
        what = f"lighthouse at {self.address.url}"
        self._hung = None
        channel = grpc_options.aio_channel(self.address)
        helpers: list[asyncio.Task[None]] = []
        try:
            call = channel.stream_stream(self._method)(metadata=self._metadata)
            for data in self._callbacks.hello():
                await call.write(data)
            try:
                first = await asyncio.wait_for(call.read(), TIMING.welcome)
            except asyncio.TimeoutError:
                raise UnreachableError(f"The {what} took the connection but did not answer our hello.") from None
            if first is grpc.aio.EOF:
                await _check_end(call, what)
                return
            beat = self._callbacks.welcome(first)
            outbox = self._outbox = Outbox(call.write)
            self.away_since, self._sent, self._answered, self._silent = None, 0, 0, 0
            self.wander.up()
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

    async def _beat(self, call: Any, beat: Keepalive) -> None:
        """Ping when idle, and while nothing is heard: at each look if the owner would rather go on, else as often as when idle.
        Counted in own looks, so that a starved process doesn't blame the lighthouse."""
        sent, idle = self._sent, 0
        while True:
            await asyncio.sleep(beat.look)
            idle = idle + 1 if self._sent == sent else 0
            due = idle >= LOOKS
            if self._sent > self._answered:
                self._silent += 1
                eager = self._callbacks.eager()
                if self._silent >= (EAGER_LOOKS if eager else beat.pings * LOOKS):
                    self._hung = f"it was silent for {self._silent * beat.look:.3g} s"
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
        pass  # the reader sees the end, with its reason


async def _check_end(call: Any, what: str) -> None:
    """Raise what the status of an ended stream means, if it isn't OK."""
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise error_from(code, await call.details(), what)


def _short(error: TorchftXError) -> str:
    """A transport's reason without the address, which is said anyway."""
    text = str(error)
    return "connection refused" if "refused" in text.lower() else text.rstrip(".")
