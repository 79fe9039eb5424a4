"""A group server's gRPC services: torchft's ManagerService, and a stream of events that ranks must know at once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from torchft_x.core import heal
from torchft_x.core.messages import group as m
from torchft_x.core.messages.group import QuorumReply, VoteReply
from torchft_x.core.messages.lighthouse import RevokeQuorum
from torchft_x.errors import DeadlineError, RefusedError
from torchft_x.rpc.codec import messages, ranks
from torchft_x.rpc.group.shell import GroupShell, Push
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.stream import Stream, answer, unary_service

log = logging.getLogger(__name__)

MAX_WATCHERS = limits.MAX_RANKS


class GroupService:
    """gRPC handlers of one `GroupShell`. They run on the loop's thread."""

    def __init__(
        self, shell: GroupShell, ids: itertools.count[int], on_kill: Callable[[str], None], *, guarded: bool
    ) -> None:
        self._shell = shell
        self._ids = ids  # call numbers, shared with the direct calls of rank 0
        self._on_kill = on_kill  # carries out Kill
        self._guarded = guarded  # whether the run has a token, without which Kill is refused
        self._watchers: set[Stream] = set()  # one stream per rank that watches
        self.hub = b""  # where rank 0 receives the votes of the group's ranks; empty: not known yet
        self._encoded: tuple[int, bytes] = (0, b"")  # id and bytes of the newest quorum: encoded once for all ranks

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        return (
            unary_service(
                grpc_options.MANAGER,
                Quorum=self._quorum,
                CheckpointMetadata=self._checkpoint_metadata,
                ShouldCommit=self._should_commit,
                Kill=self._kill,
            ),
            grpc_options.watch_service(grpc_options.GROUP, "Watch", self._watch),
            unary_service(grpc_options.GROUP, Hub=self._hub),
        )

    def push(self, push: Push) -> None:
        """Send a push to every watching rank. A `PushEnd` also ends the watches."""
        data = _watch_event(push)
        for stream in self._watchers:
            stream.send(data)
            if isinstance(push, m.PushEnd):
                stream.finish()

    async def _quorum(self, request: bytes, context: Any) -> bytes:
        p = messages.parse(peer_pb.ManagerQuorumRequest, request, "request")
        ask = ranks.ask_from_proto(next(self._ids), p)
        waiter: asyncio.Future[QuorumReply] = asyncio.get_running_loop().create_future()
        self._shell.take(ask, waiter)
        timeout = grpc_options.time_left(context) or 0.0
        try:
            reply: QuorumReply = await answer(
                waiter, context, gone=lambda: self._shell.gone(ask.call), why=self._shell.why_no_quorum
            )
        except DeadlineError:
            if self._shell.deadline.prolonged(timeout, time.monotonic()) > 0:
                context.set_trailing_metadata(((grpc_options.PAUSED_KEY, "1"),))
            raise
        if not p.ours:
            who = self._shell.config.replica_id
            plan = heal.plan(reply.quorum, who, ask.rank, init_sync=p.init_sync, base=reply.base)
            return ranks.plan_bytes(plan)
        left = max(0.0, reply.lease_until - time.monotonic())
        return ranks.quorum_reply_bytes(reply, self._encode(reply), holds=p.holds, lease_left=left)

    def _encode(self, reply: QuorumReply) -> bytes:
        if self._encoded[0] != reply.quorum.id:
            self._encoded = (reply.quorum.id, messages.pack(reply.quorum))
        return self._encoded[1]

    async def _should_commit(self, request: bytes, context: Any) -> bytes:
        p = messages.parse(peer_pb.ShouldCommitRequest, request, "request")
        vote = ranks.VOTE.decode(p, call=next(self._ids))
        waiter: asyncio.Future[VoteReply] = asyncio.get_running_loop().create_future()
        self._shell.take(vote, waiter)
        reply: VoteReply = await answer(
            waiter, context, gone=lambda: self._shell.gone(vote.call), why=self._shell.why_no_vote
        )
        return bytes(peer_pb.ShouldCommitResponse(should_commit=reply.commit).SerializeToString())

    async def _checkpoint_metadata(self, request: bytes, _context: Any) -> bytes:
        rank = messages.parse(peer_pb.CheckpointMetadataRequest, request, "request").rank
        response = peer_pb.CheckpointMetadataResponse(checkpoint_metadata=self._shell.checkpoint_metadata(rank))
        return bytes(response.SerializeToString())

    async def _hub(self, _request: bytes, _context: Any) -> bytes:
        if not self.hub:
            raise RefusedError(f"{self._shell.config.replica_id} has no address for its ranks' votes.")
        return self.hub

    async def _kill(self, request: bytes, _context: Any) -> bytes:
        message = messages.parse(peer_pb.KillRequest, request, "request").msg
        if not self._guarded:
            raise RefusedError("Kill needs a token, and this run has none; set TORCHFT_X_TOKEN for all of it.")
        self._on_kill(limits.clean(message[:200]))
        return b""

    async def _watch(self, _request: Any, context: Any) -> None:
        stream = Stream(context)
        if self._shell.last_revoked is not None:
            stream.send(_watch_event(self._shell.last_revoked))
        if self._shell.end is not None:
            stream.send(_watch_event(self._shell.end))
            stream.finish()
        elif len(self._watchers) >= MAX_WATCHERS:
            stream.finish()
        self._watchers.add(stream)
        try:
            await stream.serve(None)
        finally:
            self._watchers.discard(stream)


def _watch_event(push: Push) -> bytes:
    if isinstance(push, RevokeQuorum):
        event = pb.WatchEvent(revoked=messages.REVOKED.encode(push))
    elif push.fenced:
        event = pb.WatchEvent(fenced=pb.Fenced(by=push.sentence))
    else:
        event = pb.WatchEvent(refused=pb.Refused(sentence=push.sentence))
    return bytes(event.SerializeToString())
