"""A client of the group server, for ranks other than 0. Rank 0 has `server.GroupServer` in its own process."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import grpc

from torchft_x import env, tls
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages import group as m
from torchft_x.core.messages.group import QuorumReply
from torchft_x.core.types import Quorum
from torchft_x.errors import TorchftXError, UnreachableError
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages, ranks
from torchft_x.rpc.group.shell import FactsSource, OnEnd, OnRevoked
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.rpc.transport.grpc_errors import call, error_of
from torchft_x.rpc.transport.token import check_token, metadata
from torchft_x.timing import POLL

log = logging.getLogger(__name__)


def open_channel(address: str, connect_timeout: float, what: str) -> grpc.Channel:
    """Open a channel and wait until it is connected. Raises `UnreachableError` after `connect_timeout` seconds."""
    env.enable_tls_if_https(address)
    channel = grpc_options.channel(parse_address(address, what=what))
    try:
        grpc.channel_ready_future(channel).result(connect_timeout)
    except grpc.FutureTimeoutError:
        why = ""
        try:
            channel.unary_unary("/")(b"", timeout=1.0)
        except grpc.RpcError as e:
            why = tls.reason(e.details() or "")
        channel.close()
        late = f"The {what} at {address} took no connection within {connect_timeout:g} s"
        raise UnreachableError(f"{late}{why and ': '}{why}.") from None
    return channel


def fetch_checkpoint_metadata(address: str, rank: int, timeout: float, token: str | None) -> str:
    """Ask the group server at `address` where rank `rank` of its group serves its state, within `timeout` seconds."""
    request = peer_pb.CheckpointMetadataRequest(rank=rank).SerializeToString()
    path, what = f"/{grpc_options.MANAGER}/CheckpointMetadata", f"group server at {address}"
    with grpc_options.channel(parse_address(address, what="group server")) as channel:
        data = call(channel, path, request, what, timeout=timeout, metadata=metadata(token))
    return str(messages.parse(peer_pb.CheckpointMetadataResponse, data, "answer").checkpoint_metadata)


class GroupClient:
    """A rank's connection to its group server. Thread-safe.

    Raises `UnreachableError` if the server takes no connection within `connect_timeout` seconds."""

    def __init__(self, address: str, *, token: str | None = None, connect_timeout: float = 60.0) -> None:
        self.address = address  # address of the group server
        self._token = check_token(token)  # None: the run has no token
        self._what = f"group server at {address}"  # the server's name in sentences
        self._channel = open_channel(address, connect_timeout, "group server")  # closed by close()
        self._quorum = self._channel.unary_unary(f"/{grpc_options.MANAGER}/Quorum")  # bytes to bytes
        self._sent_traits: Fingerprint | None = None  # traits that the server has; they are not sent again
        self._held: Quorum | None = None  # newest quorum that the server has sent; it is not sent again
        self._closed = threading.Event()  # ends the watches
        self._watches: list[Any] = []  # open calls of the watches, which `close` cancels

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def next_call(self) -> int:
        """Return the `call` number of an `Ask`: always 0, because gRPC tells a socket's calls apart."""
        return 0

    def ask(self, ask: m.Ask) -> None:
        """Do nothing: `answer` sends the question and waits for its answer."""

    def answer(self, ask: m.Ask, asked: object, timeout: float) -> QuorumReply:
        """Wait at most `timeout` seconds for the answer to `ask`, and return it. `asked`: nothing.

        Raises `DeadlineError`, which names the missing ranks, groups or lighthouse; `RefusedError` if `traits` differ
        from the other groups'; `FencedError` if a newer attempt of this group runs; `TokenError`; `UnreachableError`.
        """
        del asked
        held, traits = self._held, ask.traits
        ask = replace(ask, traits=None if traits is self._sent_traits else traits)
        # init_sync matters to ranks that receive a plan; ours receive the whole quorum and decide themselves.
        request = ranks.ask_to_proto(ask, init_sync=True, ours=True, holds=held.id if held else 0)
        data = self._call(self._quorum, request, timeout)
        self._sent_traits = traits
        reply = ranks.quorum_reply_from_bytes(data, held, who=self._what, now=time.monotonic())
        self._held = reply.quorum
        return reply

    def checkpoint_metadata(self, address: str, rank: int, timeout: float) -> str:
        """Return where rank `rank` of the group whose server is at `address` serves its state."""
        return fetch_checkpoint_metadata(address, rank, timeout, self._token)

    def hub(self, timeout: float) -> bytes:
        """Return where rank 0 receives the votes of its group's ranks, as encoded by `comm.votes.ranks.Hub`."""
        options = {"timeout": timeout, "metadata": metadata(self._token)}
        return call(self._channel, f"/{grpc_options.GROUP}/Hub", b"", self._what, **options)

    def watch(self, on_revoked: OnRevoked, on_end: OnEnd) -> None:
        """Call back, on a thread of its own, when a quorum is revoked or the group must stop."""
        args = (on_revoked, on_end)
        threading.Thread(target=self._watch, args=args, name="torchft_x-watch", daemon=True).start()

    def pause(self, seconds: float, reason: str) -> None:
        """Do nothing: rank 0 announces the group's pauses, because only its silence is the group's."""

    def story(self) -> list[str]:
        """Return nothing: rank 0 reports the group's decisions."""
        return []

    def report_facts(self, facts: FactsSource) -> None:
        """Do nothing: rank 0 reports the group's facts."""

    def suspect(self, replica_ids: tuple[str, ...]) -> None:
        """Do nothing: rank 0 reports suspects.

        A probe tries other groups' servers, and rank 0 is connected to their hosts, too."""

    def close(self, *, early: bool = False) -> None:
        """Close the connection. Rank 0, which owns the group server, leaves for the group."""
        self._closed.set()
        for watch in self._watches:
            watch.cancel()
        self._channel.close()

    def _call(self, method: Any, message: Any, timeout: float) -> bytes:
        options = grpc_options.within(timeout, metadata(self._token))
        while True:
            try:
                return bytes(method(message.SerializeToString(), **options))
            except grpc.RpcError as e:
                if grpc_options.PAUSED_KEY not in dict(e.trailing_metadata() or ()):
                    raise error_of(e, self._what) from None
            except ValueError:  # gRPC raises it if the channel is closed
                raise UnreachableError(f"The connection to the {self._what} is closed.") from None

    def _watch(self, on_revoked: OnRevoked, on_end: OnEnd) -> None:
        """Read pushes until closed. A broken watch is opened again, and the server then repeats its last push."""
        method = self._channel.unary_stream(f"/{grpc_options.GROUP}/Watch")
        revoked_before: set[int] = set()  # ids of quorums already reported as revoked
        while not self._closed.is_set():
            try:
                watch = method(b"", metadata=metadata(self._token))
                self._watches = [*[w for w in self._watches if w.is_active()], watch]
                for data in watch:
                    if self._hear(
                        messages.parse(pb.WatchEvent, data, "pushed message"), revoked_before, on_revoked, on_end
                    ):
                        return
            except (grpc.RpcError, ValueError) as e:
                log.debug("the watch of %s ended: %s", self._what, e)
            except TorchftXError as e:
                log.warning("%s", e)
            self._closed.wait(POLL)

    def _hear(self, event: pb.WatchEvent, revoked_before: set[int], on_revoked: OnRevoked, on_end: OnEnd) -> bool:
        """Handle one push. Return whether it was the last."""
        kind = event.WhichOneof("kind")
        try:
            if kind == "revoked":
                revoked = messages.REVOKED.decode(event.revoked)
                if revoked.quorum_id not in revoked_before:
                    revoked_before.add(revoked.quorum_id)
                    on_revoked(revoked.quorum_id, revoked.lost, revoked.reason, revoked.left)
            elif kind == "fenced":
                on_end(event.fenced.by, True)
            elif kind == "refused":
                on_end(limits.clean(event.refused.sentence[: limits.MAX_TEXT]), False)
        except Exception:
            log.exception("a callback of the watch failed")
        return kind in ("fenced", "refused")
