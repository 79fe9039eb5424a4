"""The vote inside a group: each rank sends rank 0 its vote, and receives the decision and how the next step begins.

Rank 0 speaks for its group, so everything a step needs from inside the group goes through it. It has one TCP
connection to each other rank, which lasts as long as the group. The training threads write and read the sockets
themselves: a step costs each rank one message up and two down, and neither gRPC nor another thread. Only rank 0
decides, so no two ranks can decide differently (I2). A rank that doesn't receive the decision doesn't know the
outcome, and can only stop.

Messages carry their quorum and step: leftovers from a step that was given up are skipped.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torchft_x import tls
from torchft_x.comm.votes.handshake import VoteEndpoint, introduction, read_contact
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import CollectiveError, DeadlineError, RefusedError, UnreachableError
from torchft_x.timing import POLL_FAST

_AWAKE = 0.00003  # seconds of polling before a sleep; see `comm.votes.mesh`
_VOTE = struct.Struct("!qq??QI?BQQ")  # fields of `RankVote`
_WORD = struct.Struct(
    "!BqqH??B????"
)  # kind, quorum, step, bytes of the reason that follows, other fields of `Decision`
_DECISION, _START = 1, 2  # kinds of messages from rank 0
_MAX_REASON = 1000  # bytes


class RankVote(NamedTuple):
    """Vote of one rank on step `step` of quorum `quorum`."""

    quorum: int
    step: int  # number of steps committed before it
    ok: bool
    broken: bool = False  # as in `core.messages.Vote`
    digest: int = 0  # 64 bits, unsigned
    contributors: int = 0
    left: bool = False  # it has given the step up, and waits for no decision
    copies: int = 0  # 5 bits, see `core.training.memory_checkpoint.CopyVote`
    state: int = 0  # digest of its initial state, 64 bits, unsigned; 0: not compared
    slot: int = 0  # digest of the gradient of the compared slot, 64 bits, unsigned; 0: not computed


class Decision(NamedTuple):
    commit: bool
    reason: str = ""  # why the step is not committed
    undecided: bool = False  # another group may have committed it
    copies: int = 0  # 5 bits, see `core.training.memory_checkpoint.CopyDecision`
    differ: bool = False  # the groups hold different states
    wrong: bool = False  # and this group's state is not that of most groups
    disputed: bool = False  # gradients of the compared slot differ, or have differed before in this step
    faulty: bool = False  # and this group computes wrong ones


class Hub(VoteEndpoint):
    """Rank 0's end of the vote. Used by one thread at a time, except for `end`.

    Args:
        host: address or name of this machine, on which to listen and which other ranks connect to.
        ranks: number of ranks of the group, this one included.
    """

    def __init__(self, host: str, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks  # fixed
        self.owes_start = False  # a commit was sent, and the start of the next step was not
        self.contact = self._listen(host, max(256, ranks)).encode()
        self._links: dict[int, socket.socket] = {}  # rank -> non-blocking connection
        self._heard: dict[int, bytes] = {}  # bytes received from ranks and not yet parsed
        # A rank connects when it starts, and its TLS handshake must not wait for rank 0's first step.
        self._reception = threading.Thread(target=self._receive_ranks, name="torchft_x vote", daemon=True)
        self._reception.start()

    def gather(self, quorum: int, step: int, timeout: float) -> dict[int, RankVote]:
        """Return the other ranks' votes on this step, by rank.

        Raises `DeadlineError` naming the ranks that have not voted, `CollectiveError` if a connection broke or after
        `end`.
        """
        deadline = time.monotonic() + timeout
        with self._using:
            self._connect(deadline)
            votes: dict[int, RankVote] = {}
            awake = time.monotonic() + _AWAKE
            while True:
                for rank, sock in self._links.items():
                    if rank not in votes and (vote := self._vote(rank, sock, quorum, step)) is not None:
                        votes[rank] = vote
                if len(votes) == self.ranks - 1:
                    return votes
                if time.monotonic() > awake:
                    self._sleep([r for r in self._links if r not in votes], deadline)
                else:
                    os.sched_yield()

    def decide(self, quorum: int, step: int, decision: Decision) -> None:
        """Send the decision to all ranks. The next `gather` notices a rank that could not be reached."""
        commit, reason, *more = decision
        text = reason.encode(errors="replace")[:_MAX_REASON]
        self._tell(_WORD.pack(_DECISION, quorum, step, len(text), commit, *more) + text)
        self.owes_start = commit

    def start(self, quorum: int, step: int, *, runs_on: bool, connected: bool) -> None:
        """Announce after a commit that the next step begins in the present quorum, or that all ask for another.

        `connected`: whether the group has a session with the lighthouse.
        """
        self.owes_start = False
        self._tell(_WORD.pack(_START, quorum, step, 0, runs_on, connected, 0, False, False, False, False))

    def close(self) -> None:
        self.end("the group was shut down")
        self._reception.join()
        super().close()

    # --- private ------------------------------------------------------------------------------------------------------

    def _receive_ranks(self) -> None:
        """Accept the connections of the other ranks until all are there, or the vote has ended."""
        try:
            self._accept(
                set(range(1, self.ranks)), self._links, POLL_FAST, lambda missing: self._check(missing, math.inf)
            )
        except CollectiveError:
            pass
        except OSError as e:
            self.end(f"no connection can be accepted: {e}")

    def _connect(self, deadline: float) -> None:
        """Wait until the other ranks are connected."""
        while self._reception.is_alive():
            self._check([rank for rank in range(1, self.ranks) if rank not in self._links], deadline)
            self._reception.join(POLL_FAST)

    def _vote(self, rank: int, sock: socket.socket, quorum: int, step: int) -> RankVote | None:
        """Return the rank's vote on this step if it has come, otherwise None."""
        while True:
            heard = self._heard.get(rank, b"")
            try:
                got = sock.recv(_VOTE.size - len(heard))
            except BlockingIOError:
                return None
            except OSError as e:
                raise self._broken(rank, str(e)) from None
            if not got:
                raise self._broken(rank, "connection closed by the other side")
            self._heard[rank] = heard = heard + got
            if len(heard) < _VOTE.size:
                continue
            self._heard[rank] = b""
            vote = RankVote(*_VOTE.unpack(heard))
            if vote[:2] == (quorum, step):
                return vote
            if vote[:2] > (quorum, step):
                words = f"it votes on step {vote.step} of quorum {vote.quorum}, this group on step {step} of {quorum}"
                raise self._broken(rank, words)

    def _sleep(self, missing: Sequence[int], deadline: float) -> None:
        """Sleep until one of the missing ranks has sent something, or until the deadline."""
        self._check(missing, deadline)
        ready = select.poll()
        for rank in missing:
            ready.register(self._links[rank], select.POLLIN)
        ready.poll(max(1.0, (deadline - time.monotonic()) * 1e3))

    def _check(self, missing: Sequence[int] | set[int], deadline: float) -> None:
        if self._why:
            raise CollectiveError(f"the vote inside the group was released: {self._why}.")
        if time.monotonic() > deadline:
            who = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
            raise DeadlineError(f"No decision in time: group rank {who} of {self.ranks} has not voted.")

    def _tell(self, data: bytes) -> None:
        with self._using:
            for sock in self._links.values():
                with contextlib.suppress(OSError):  # also on a full buffer: that rank has not read for long
                    sock.sendall(data)

    def _broken(self, rank: int, words: str) -> CollectiveError:
        if self._why:
            return CollectiveError(f"the vote inside the group was released: {self._why}.")
        return CollectiveError(f"the connection to group rank {rank} broke: {words}.")


class Spoke:
    """Another rank's end of the vote. Used by one thread at a time, except for `end`.

    Args:
        contact: the `Hub.contact` of rank 0: its address and secret.
        rank: this one.

    Raises `UnreachableError` if rank 0 can't be reached within `timeout` seconds, `RefusedError` if `contact` can't
    be parsed.
    """

    def __init__(self, contact: bytes, rank: int, timeout: float) -> None:
        self.expects_start = False  # a commit was received, and the start of the next step was not
        self.connected = True  # whether the group had a session with the lighthouse when its newest step began
        self._why = ""  # why it has ended, as a clause; empty if it hasn't
        self._heard = b""  # bytes received and not yet parsed
        try:
            where, secret = read_contact(contact)
            hello = introduction(secret, rank)
        except (ValueError, TypeError, KeyError, struct.error) as e:
            raise RefusedError(f"what group rank 0 says about its address is not understood: {e}.") from None
        try:
            self._sock = not_inherited(tls.client(socket.create_connection(where, timeout)))
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.sendall(hello)
            self._sock.setblocking(False)
        except (OSError, OverflowError) as e:
            raise UnreachableError(
                f"group rank {rank} can't reach rank 0 at {where[0]}:{where[1]}: {e}; ranks of a group must reach each "
                "other on every port."
            ) from None
        self._ready = select.poll()
        self._ready.register(self._sock, select.POLLIN)

    def vote(self, vote: RankVote, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> Decision:
        """Send a vote, and wait for rank 0's decision. `meanwhile` is called once after the vote is sent.

        Raises `CollectiveError` if the connection broke or after `end`, `DeadlineError`; then the outcome is unknown.
        """
        deadline = time.monotonic() + timeout
        self._say(vote)
        meanwhile()
        while True:
            word = self._word(deadline)
            if word is None:
                raise DeadlineError(f"No decision in time: group rank 0 has not said one within {timeout:g} s.")
            kind, quorum, step, decision = word
            if (kind, quorum, step) == (_DECISION, vote.quorum, vote.step):
                self.expects_start = decision.commit
                return decision

    def leave(self, quorum: int, step: int) -> None:
        """Report that this step is given up. Does not wait."""
        with contextlib.suppress(CollectiveError):  # the next vote reports the broken connection
            self._say(RankVote(quorum, step, False, broken=True, left=True))

    def start(self, timeout: float) -> tuple[bool, int, int] | None:
        """Wait for the start of the next step after a commit, and return (whether it runs on, quorum, step).

        If it runs on, the step begins in that quorum; if not, all ask for another quorum. Returns None if nothing
        came within `timeout` seconds. Raises `CollectiveError` as `vote`.
        """
        deadline = time.monotonic() + timeout
        while (word := self._word(deadline)) is not None:
            kind, quorum, step, (runs_on, _, connected, *_) = word
            if kind == _START:
                self.expects_start, self.connected = False, connected
                return runs_on, quorum, step
        return None

    def end(self, why: str) -> None:
        """End the vote and release waiting callers in this process. From any thread."""
        self._why = self._why or why
        shut(self._sock)

    def close(self) -> None:
        self.end("the group was shut down")
        close(self._sock)

    # --- private ------------------------------------------------------------------------------------------------------

    def _say(self, vote: RankVote) -> None:
        try:
            self._sock.sendall(_VOTE.pack(*vote))
        except OSError as e:
            raise self._broken(e) from None

    def _word(self, deadline: float) -> tuple[int, int, int, Decision] | None:
        """Return kind, quorum, step and content of the next message from rank 0, or None if none has come in time."""
        head = self._read(_WORD.size, deadline)
        if head is None:
            return None
        kind, quorum, step, size, commit, *more = _WORD.unpack(head)
        if size > _MAX_REASON:
            raise self._broken(ValueError(f"a reason of {size} bytes"))
        reason = self._read(size, time.monotonic() + 1.0) if size else b""
        if reason is None:
            raise self._broken(TimeoutError("half a message came"))
        return kind, quorum, step, Decision(commit, reason.decode(errors="replace"), *more)

    def _read(self, size: int, deadline: float) -> bytes | None:
        """Return `size` bytes, or None at the deadline. Bytes received so far are kept."""
        awake = time.monotonic() + _AWAKE
        while len(self._heard) < size:
            try:
                got = self._sock.recv(size - len(self._heard))
            except BlockingIOError:
                now = time.monotonic()
                if now > deadline:
                    return None
                if now > awake:
                    self._ready.poll(max(1.0, (deadline - now) * 1e3))
                else:
                    os.sched_yield()
                continue
            except OSError as e:
                raise self._broken(e) from None
            if not got:
                raise self._broken(ConnectionResetError("connection closed by the other side"))
            self._heard += got
        data, self._heard = self._heard[:size], self._heard[size:]
        return data

    def _broken(self, cause: Exception) -> CollectiveError:
        if self._why:
            return CollectiveError(f"the vote inside the group was released: {self._why}.")
        return CollectiveError(f"the connection to group rank 0 broke: {cause}.")
