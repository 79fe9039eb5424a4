"""The lighthouse's service for torchft's clients: unary calls, each answered by the next quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from torchft_x.core.messages import lighthouse as m
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import limits
from torchft_x.rpc.transport.stream import answer


class TorchftService:
    """Service for torchft's unary calls, on the loop's thread. The lighthouse's key identifies a call."""

    def __init__(
        self, feed: Callable[[m.LighthouseEvent], None], next_key: Callable[[], int], undecided: Callable[[], str]
    ) -> None:
        self._feed = feed  # delivers an event to the lighthouse's machine
        self._next_key = next_key  # returns the key of the next call
        self._undecided = undecided  # returns why there is no quorum yet
        self._calls: dict[int, asyncio.Future[bytes]] = {}  # answers of open calls, by key

    async def quorum(self, request: bytes, context: Any) -> bytes:
        member = messages.parse(peer_pb.LighthouseQuorumRequest, request, "request").requester
        call = self._next_key()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self._feed(m.UnaryJoin(call, messages.peer_member_from_proto(member)))
            return bytes(await answer(future, context, gone=lambda: self._feed(m.UnaryGone(call)), why=self._why))
        finally:
            del self._calls[call]

    async def heartbeat(self, request: bytes, _context: Any) -> bytes:
        replica_id = messages.parse(peer_pb.LighthouseHeartbeatRequest, request, "request").replica_id
        self._feed(m.Heartbeat(limits.check_name(replica_id)))
        return b""

    def issue(self, calls: Iterable[int], data: bytes) -> None:
        """Answer these calls with an encoded quorum."""
        for future in self._open(calls):
            future.set_result(data)

    def refuse(self, call: int, sentence: str) -> None:
        for future in self._open([call]):
            future.set_exception(RefusedError(sentence))

    def _open(self, calls: Iterable[int]) -> list[asyncio.Future[bytes]]:
        return [f for call in calls if (f := self._calls.get(call)) is not None and not f.done()]

    def _why(self) -> str:
        return f"No quorum formed in time: {(self._undecided() or 'no reason known').rstrip('.')}."
