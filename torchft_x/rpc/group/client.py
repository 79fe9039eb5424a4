"""What a rank uses to talk to its group server: over a socket, or without one in the server's own process."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import grpc

from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages import group as m
from torchft_x.core.types import JoinReason, Quorum, State
from torchft_x.errors import TorchftXError, UnreachableError
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages, ranks
from torchft_x.rpc.codec.ranks import QuorumReply, VoteReply
from torchft_x.rpc.group import pause_clock
from torchft_x.rpc.group.server import GroupServer, OnEnd, OnRevoked
from torchft_x.rpc.group.shell import FactsSource
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.grpc_errors import error_of
from torchft_x.rpc.transport.token import check_token, metadata
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

RECONNECT_PAUSE = 0.2
"""Seconds between tries of a broken watch."""


def open_channel(address: str, connect_timeout: float, what: str) -> grpc.Channel:
    """A channel that stands. Raises `UnreachableError` after `connect_timeout` seconds."""
    channel = grpc_options.channel(parse_address(address, what=what))
    try:
        grpc.channel_ready_future(channel).result(connect_timeout)
    except grpc.FutureTimeoutError:
        channel.close()
        raise UnreachableError(f"The {what} at {address} took no connection within {connect_timeout:g} s.") from None
    return channel


def fetch_checkpoint_metadata(address: str, rank: int, timeout: float, token: str | None) -> str:
    """Where that rank of another group serves its state; asked from the group's server."""
    what = f"group server at {address}"
    with grpc_options.channel(parse_address(address, what="group server")) as channel:
        try:
            data = channel.unary_unary(f"/{grpc_options.MANAGER}/CheckpointMetadata")(
                peer_pb.CheckpointMetadataRequest(rank=rank).SerializeToString(),
                timeout=timeout,
                metadata=metadata(token),
            )
        except grpc.RpcError as e:
            raise error_of(e, what) from None
    return str(messages.parse(peer_pb.CheckpointMetadataResponse, data, "answer").checkpoint_metadata)


class GroupClient:
    """A rank's connection to its group server. Thread-safe. Raises `UnreachableError` if nobody is there in time."""

    def __init__(self, address: str, *, token: str | None = None, connect_timeout: float = 60.0) -> None:
        self.address = address  # of the group server
        self._token = check_token(token)  # None: open
        self._what = f"group server at {address}"  # for sentences
        self._channel = open_channel(address, connect_timeout, "group server")  # closed by close()
        self._quorum = self._channel.unary_unary(f"/{grpc_options.MANAGER}/Quorum")  # bytes to bytes
        self._vote = self._channel.unary_unary(f"/{grpc_options.MANAGER}/ShouldCommit")  # bytes to bytes
        self._told: Fingerprint | None = None  # what the server knows to be declared here
        self._held: Quorum | None = None  # newest quorum it has sent; it is not sent twice
        self._closed = threading.Event()  # ends the watches
        self._watches: list[Any] = []  # their present calls, to be cancelled

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def quorum(
        self,
        *,
        group_rank: int,
        state: State,
        torn: bool = False,
        checkpoint_metadata: str = "",
        shrink_only: bool = False,
        init_sync: bool = True,
        commit_failures: int = 0,
        handle: str = "",
        reason: JoinReason = JoinReason.BOUNDARY,
        suspects: tuple[str, ...] = (),
        traits: Fingerprint | None = None,
        step_seconds: float = 0.0,
        timeout: float,
        patience: float = 0.0,
    ) -> QuorumReply:
        """Ask for a quorum and wait up to `timeout` seconds. Every rank of the group must ask.

        Time in which the lighthouse is away or waits for a lease to end doesn't count, up to `patience` seconds.

        Raises `DeadlineError` (with what is missing: other ranks, other groups, the lighthouse), `RefusedError`
        (`traits` that differ from the other groups'), `FencedError` (a newer life of this group runs), `TokenError`,
        `UnreachableError`.
        """
        del init_sync
        ask = m.Ask(
            call=0,
            rank=group_rank,
            state=state,
            torn=torn,
            shrink_only=shrink_only,
            commit_failures=commit_failures,
            checkpoint_metadata=checkpoint_metadata,
            handle=handle,
            reason=reason,
            suspects=suspects,
            traits=traits,
            step_seconds=step_seconds,
            usual=timeout if patience > 0 else 0.0,
        )
        return self.answer(ask, None, timeout + patience)

    def next_call(self) -> int:
        """What an `Ask` or a vote has as its `call`: of no meaning over a socket, where gRPC tells calls apart."""
        return 0

    def ask(self, ask: m.Ask) -> None:
        """Ask for a quorum. Nothing is sent before `answer` waits for it."""

    def answer(self, ask: m.Ask, asked: object, timeout: float) -> QuorumReply:
        """What is answered to `ask`, after at most `timeout` seconds; `asked`: what `ask` returned. Raises as `quorum`."""
        del asked
        held, traits = self._held, ask.traits
        ask = replace(ask, traits=None if traits is self._told else traits)
        # init_sync is for ranks that get a plan; we get the whole quorum, and its reader decides
        request = ranks.ask_to_proto(ask, init_sync=True, ours=True, holds=held.id if held else 0)
        data = self._call(self._quorum, request, timeout)
        self._told = traits
        reply = ranks.quorum_reply_from_bytes(data, held, who=self._what, now=time.monotonic())
        self._held = reply.quorum
        return reply

    def vote(self, vote: m.Vote | m.CrossVoteEnded, timeout: float) -> VoteReply:
        """Vote (`Vote`), or say how the vote between groups ended (`CrossVoteEnded`), and wait for what the
        group says. Every rank of the group must do it."""
        return ranks.vote_reply_from_bytes(self._call(self._vote, ranks.vote_to_proto(vote), timeout))

    def should_commit(self, group_rank: int, step: int, quorum_id: int, ok: bool, timeout: float) -> tuple[bool, str]:
        """Vote and wait for the decision of a group that doesn't vote with others: (commit?, why not)."""
        reply = self.vote(m.Vote(0, group_rank, step, quorum_id, ok), timeout)
        return reply.commit, reply.reason

    def checkpoint_metadata(self, address: str, rank: int, timeout: float) -> str:
        """Where rank `rank` of the group whose server is at `address` serves its state."""
        return fetch_checkpoint_metadata(address, rank, timeout, self._token)

    def hub(self, timeout: float) -> bytes:
        """Where rank 0 hears the votes of its group's ranks, in the words of its `comm.votes.ranks.Hub`."""
        try:
            hub = self._channel.unary_unary(f"/{grpc_options.GROUP}/Hub")
            return bytes(hub(b"", timeout=timeout, metadata=metadata(self._token)))
        except grpc.RpcError as e:
            raise error_of(e, self._what) from None

    def watch(self, on_revoked: OnRevoked, on_end: OnEnd) -> None:
        """Call back, on a thread of its own, when a quorum is over or the group must stop."""
        args = (on_revoked, on_end)
        threading.Thread(target=self._watch, args=args, name="torchft_x-watch", daemon=True).start()

    def leave(self, *, early: bool = False) -> None:
        """Leaving is the group server's work; a rank that isn't its owner has nothing to say."""

    def pause(self, seconds: float, reason: str) -> None:
        """The same: the group's silence is that of rank 0, which speaks for it."""

    def story(self) -> list[str]:
        """What the group has decided lately is rank 0's to tell."""
        return []

    def tell(self, facts: FactsSource) -> None:
        """The same: what a group tells of itself is rank 0's."""

    def suspect(self, replica_ids: tuple[str, ...]) -> None:
        """The same: a probe asks for the others' group servers, and rank 0 is connected to their hosts, too."""

    def close(self) -> None:
        self._closed.set()
        for call in self._watches:
            call.cancel()
        self._channel.close()

    def _call(self, method: Any, message: Any, timeout: float) -> bytes:
        said = (*metadata(self._token), (grpc_options.TIMEOUT_KEY, f"{timeout:.3f}"))
        while True:
            try:
                return bytes(method(message.SerializeToString(), timeout=timeout + TIMING.late_answer, metadata=said))
            except grpc.RpcError as e:
                if pause_clock.KEY not in dict(e.trailing_metadata() or ()):  # else a group pauses, and is waited for
                    raise error_of(e, self._what) from None
            except ValueError:  # gRPC's way to say that the channel is closed
                raise UnreachableError(f"The connection to the {self._what} is closed.") from None

    def _watch(self, on_revoked: OnRevoked, on_end: OnEnd) -> None:
        """Read pushes until closed; a broken watch is opened again, and the server repeats what it said last."""
        method = self._channel.unary_stream(f"/{grpc_options.GROUP}/Watch")
        told: set[int] = set()  # quorums already reported as over
        while not self._closed.is_set():
            try:
                call = method(pb.WatchRequest().SerializeToString(), metadata=metadata(self._token))
                self._watches = [*[w for w in self._watches if w.is_active()], call]
                for data in call:
                    if self._hear(messages.parse(pb.WatchEvent, data, "pushed message"), told, on_revoked, on_end):
                        return
            except (grpc.RpcError, ValueError) as e:
                log.debug("the watch of %s ended: %s", self._what, e)
            except TorchftXError as e:
                log.warning("%s", e)
            self._closed.wait(RECONNECT_PAUSE)

    def _hear(self, event: pb.WatchEvent, told: set[int], on_revoked: OnRevoked, on_end: OnEnd) -> bool:
        """One push; True if it was the last."""
        kind = event.WhichOneof("kind")
        try:
            if kind == "revoked":
                revoked = messages.REVOKED.decode(event.revoked)
                if revoked.quorum_id not in told:
                    told.add(revoked.quorum_id)
                    on_revoked(revoked.quorum_id, revoked.lost, revoked.reason, revoked.left)
            elif kind == "fenced":
                on_end(event.fenced.by, True)
            elif kind == "refused":
                on_end(limits.clean(event.refused.sentence[: limits.MAX_TEXT]), False)
        except Exception:
            log.exception("a callback of the watch failed")
        return kind in ("fenced", "refused")


class LocalGroupClient:
    """The same interface for rank 0, in the group server's process: calls without a socket.

    What each step needs (`ask`, `vote_for_all`) is the shell's own: nothing lies in between.
    """

    def __init__(self, server: GroupServer, *, token: str | None = None) -> None:
        self._server = server  # closed by close()
        self._token = check_token(token)  # for other groups' servers
        self.address = server.address()  # of the group server
        self.shell = server.shell
        self.next_call = server.next_call
        self.ask = server.shell.submit
        self.answer = server.answer
        self.quorum = server.quorum
        self.vote = server.vote
        self.vote_for_all = server.shell.submit_all
        self.should_commit = server.should_commit
        self.watch = server.watch
        self.pause = server.pause
        self.suspect = server.suspect
        self.story = server.shell.story

    def tell(self, facts: FactsSource) -> None:
        self._server.shell.facts = facts

    def __repr__(self) -> str:
        return f"LocalGroupClient({self._server!r})"

    def checkpoint_metadata(self, address: str, rank: int, timeout: float) -> str:
        return fetch_checkpoint_metadata(address, rank, timeout, self._token)

    def leave(self, *, early: bool = False) -> None:
        """Leave gracefully: at a step boundary, nothing is lost for the others. `early`: see `GroupServer.shutdown`."""
        self._server.shutdown(early=early)

    def close(self) -> None:
        self._server.shutdown()
