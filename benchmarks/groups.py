"""Simulated groups for the fan-out: many clients of a real lighthouse in one process, over either library's protocol.

Replies are not decoded (but for one per round), so that the client costs both libraries alike.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from torchft_x import __version__, net
from torchft_x.core.types import JoinReason
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options

import grpc.aio  # isort: skip  (our room sets its environment first)

_CHANNEL = [
    ("grpc.max_receive_message_length", grpc_options.MAX_CLIENT_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),  # one connection per channel
    ("grpc.enable_http_proxy", 0),
]
_QUORUM = pb.Down.DESCRIPTOR.fields_by_name["quorum"].number
_AT_ONCE = 50  # groups that connect at the same time
_QUIET = 1.0  # seconds of silence after which the groups send a sign of life; the default heartbeat timeout is 5 s
_PING = pb.Up(ping=pb.Ping()).SerializeToString()


class Groups(Protocol):
    """Simulated groups, numbered from 0. One implementation per protocol."""

    async def open(self) -> None: ...
    async def refresh(self) -> None:
        """Send signs of life between two rounds, if the last ones are too old."""

    async def prepare(self) -> None:
        """Serialise the requests of the next round."""

    def ask(self, i: int) -> None:
        """Schedule sending group i's request, which leaves when the event loop runs next."""

    async def answer(self, i: int) -> None:
        """Wait for group i's quorum."""

    async def finish(self) -> None:
        """Check the round's quorum, and take over its step. Raise RuntimeError if a group is missing."""

    async def close(self) -> None: ...


class OurGroups:
    """Groups that hold a session with torchft_x's lighthouse, as group servers do."""

    def __init__(self, target: str, number: int) -> None:
        self.number = number
        self._channels = [grpc.aio.insecure_channel(target, options=_CHANNEL) for _ in range(number)]
        self._calls: list[Any] = []
        self._requests: list[bytes] = []
        self._asking: dict[int, asyncio.Future[None]] = {}  # requests being sent, by group
        self._state = pb.State()  # state of every group
        self._last = b""  # first group's last quorum
        self._quiet_since = time.monotonic()

    async def open(self) -> None:
        for begin in range(0, self.number, _AT_ONCE):
            wave = range(begin, min(begin + _AT_ONCE, self.number))
            self._calls += [self._channels[i].stream_stream(f"/{grpc_options.SESSION}/Session")() for i in wave]
            await asyncio.gather(*(self._hello(i) for i in wave))
            await self.refresh()  # the groups that connected first must not be suspected

    async def _hello(self, i: int) -> None:
        hello = pb.Hello(
            replica_id=f"bench_{i}:1",
            attempt_id=pb.AttemptId(started=time.time(), token=f"bench_{i}"),
            address=f"http://127.0.0.1:{10000 + i}",
            boot_id=net.boot_id(),
            library=f"torchft_x/{__version__}",
            wire=grpc_options.WIRE,
        )
        await self._calls[i].write(pb.Up(hello=hello).SerializeToString())
        down = pb.Down.FromString(await self._calls[i].read())
        if down.WhichOneof("kind") != "welcome":
            raise RuntimeError(f"the lighthouse does not welcome a simulated group: {down}")

    async def refresh(self) -> None:
        if time.monotonic() - self._quiet_since > _QUIET:
            for call in self._calls:
                await call.write(_PING)
            self._quiet_since = time.monotonic()

    async def prepare(self) -> None:
        self._requests = [
            pb.Up(
                join=pb.Join(
                    member=pb.Member(
                        replica_id=f"bench_{i}:1",
                        address=f"http://127.0.0.1:{10000 + i}",
                        store_address=f"127.0.0.1:{20000 + i}",
                        state=self._state,
                        world_size=1,
                        library=f"torchft_x/{__version__}",
                    ),
                    reason=(JoinReason.BOUNDARY if self._state.step else JoinReason.NEW).value,
                )
            ).SerializeToString()
            for i in range(self.number)
        ]

    def ask(self, i: int) -> None:
        self._asking[i] = asyncio.ensure_future(self._calls[i].write(self._requests[i]))

    async def answer(self, i: int) -> None:
        while True:
            data = await self._calls[i].read()
            if data is grpc.aio.EOF:
                raise RuntimeError(
                    f"the lighthouse ended a simulated group's session: {await self._calls[i].details()}"
                )
            if data[0] >> 3 == _QUORUM:
                break
        if i == 0:
            self._last = data

    async def finish(self) -> None:
        await asyncio.gather(*self._asking.values())
        self._asking.clear()
        quorum = messages.unpack(pb.Down.FromString(self._last).quorum)
        if len(quorum.members) != self.number:
            raise RuntimeError(f"a quorum of {len(quorum.members)} instead of {self.number}")
        self._state = pb.State(step=self._state.step + 1, committed_in=quorum.id)

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*(c.close() for c in self._channels))


class PeerGroups:
    """Groups that send unary calls to torchft's lighthouse, as the peer's manager servers do."""

    def __init__(self, target: str, number: int) -> None:
        self.number = number
        self._channels = [grpc.aio.insecure_channel(target, options=_CHANNEL) for _ in range(number)]
        self._quorum = [c.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Quorum") for c in self._channels]
        self._requests: list[bytes] = []
        self._calls: dict[int, Any] = {}
        self._step = 0
        self._last = b""
        self._quiet_since = time.monotonic()

    async def open(self) -> None:
        """Send a heartbeat of each group: all must be known before the first asks, or it gets a quorum of its own."""
        for begin in range(0, self.number, _AT_ONCE):
            await asyncio.gather(*(self._beat(i) for i in range(begin, min(begin + _AT_ONCE, self.number))))
        self._quiet_since = time.monotonic()

    async def _beat(self, i: int) -> None:
        beat = peer_pb.LighthouseHeartbeatRequest(replica_id=f"bench_{i}:1").SerializeToString()
        await self._channels[i].unary_unary(f"/{grpc_options.LIGHTHOUSE}/Heartbeat")(beat, timeout=30.0)

    async def refresh(self) -> None:
        if time.monotonic() - self._quiet_since > _QUIET:
            await self.open()

    async def prepare(self) -> None:
        self._requests = [
            peer_pb.LighthouseQuorumRequest(
                requester=peer_pb.QuorumMember(
                    replica_id=f"bench_{i}:1",
                    address=f"http://127.0.0.1:{10000 + i}",
                    store_address=f"127.0.0.1:{20000 + i}",
                    step=self._step,
                    world_size=1,
                )
            ).SerializeToString()
            for i in range(self.number)
        ]

    def ask(self, i: int) -> None:
        self._calls[i] = self._quorum[i](self._requests[i], timeout=60.0)

    async def answer(self, i: int) -> None:
        data = await self._calls[i]
        if i == 0:
            self._last = data

    async def finish(self) -> None:
        members = len(peer_pb.LighthouseQuorumResponse.FromString(self._last).quorum.participants)
        if members != self.number:
            raise RuntimeError(f"a quorum of {members} instead of {self.number}")
        self._step += 1
        self._calls.clear()

    async def close(self) -> None:
        await asyncio.gather(*(c.close() for c in self._channels))


async def change(groups: Groups, number: int, *, burst: bool) -> float:
    """Return the seconds of one quorum change, up to the last answer.

    With `burst` all groups ask at once, and the time begins with the first request. Without it all but the last group
    ask well before, and the time begins with the last request.
    """
    await groups.prepare()
    first = 0 if burst else number - 1
    for i in range(first):
        groups.ask(i)
    answers = [asyncio.ensure_future(groups.answer(i)) for i in range(first)]
    if first:
        await asyncio.sleep(0.05 + number / 2000)  # until the server has received all these requests
    begin = time.perf_counter()
    for i in range(first, number):
        groups.ask(i)
        answers.append(asyncio.ensure_future(groups.answer(i)))
    await asyncio.wait_for(asyncio.gather(*answers), 60.0)
    seconds = time.perf_counter() - begin
    await groups.finish()
    return seconds
