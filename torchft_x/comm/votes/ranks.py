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
from dataclasses import dataclass

from torchft_x import tls
from torchft_x.comm.votes.handshake import VoteEndpoint, introduction, read_contact
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import CollectiveError, DeadlineError, RefusedError, UnreachableError
from torchft_x.timing import POLL_FAST

_AWAKE = 0.00003  # seconds of polling before a sleep; see `comm.votes.mesh`
_VOTE = struct.Struct("!BIqqQQQ")  # flags, contributors, quorum, step, digest, state, slot
_WORD = struct.Struct("!BHHqq")  # kind, flags, bytes of the reason that follows, quorum, step
_DECISION, _START = 1, 2  # kinds of messages from rank 0
_OK, _BROKEN, _LEFT = 1, 2, 4  # flags of a vote
_YES, _OPEN, _ALONE = 1, 2, 4  # flags of a message from rank 0
_DIFFER, _WRONG, _DISPUTED, _FAULTY = 256, 512, 1024, 2048
_COPIES = 3  # position of the five bits about copies
_OF_COPIES = 31
_MAX_REASON = 1000  # bytes


@dataclass(frozen=True, slots=True)
class RankVote:
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


@dataclass(frozen=True, slots=True)
class Decision:
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

    def __repr__(self) -> str:
        return f"Hub({len(self._links)} of {self.ranks - 1} ranks{': ' * bool(self._why)}{self._why})"

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
        reason = decision.reason.encode(errors="replace")[:_MAX_REASON]
        flags = _YES * decision.commit | _OPEN * decision.undecided | decision.copies << _COPIES
        flags |= _DIFFER * decision.differ | _WRONG * decision.wrong
        flags |= _DISPUTED * decision.disputed | _FAULTY * decision.faulty
        self._tell(_WORD.pack(_DECISION, flags, len(reason), quorum, step) + reason)
        self.owes_start = decision.commit

    def start(self, quorum: int, step: int, *, runs_on: bool, connected: bool) -> None:
        """Announce after a commit that the next step begins in the present quorum, or that all ask for another.

        `connected`: whether the group has a session with the lighthouse.
        """
        self.owes_start = False
        self._tell(_WORD.pack(_START, _YES * runs_on | _ALONE * (not connected), 0, quorum, step))

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
        heard = self._heard.get(rank, b"")
        while True:
            if len(heard) < _VOTE.size:
                try:
                    got = sock.recv(_VOTE.size - len(heard))
                except BlockingIOError:
                    return None
                except OSError as e:
                    raise self._broken(rank, str(e)) from None
                if not got:
                    raise self._broken(rank, "connection closed by the other side")
                heard = self._heard[rank] = heard + got
                continue
            flags, contributors, its_quorum, its_step, digest, state, slot = _VOTE.unpack(heard)
            self._heard[rank] = heard = b""
            if (its_quorum, its_step) == (quorum, step):
                left, broken = bool(flags & _LEFT), bool(flags & _BROKEN)
                ok, copies = bool(flags & _OK), flags >> _COPIES
                return RankVote(quorum, step, ok, broken, digest, contributors, left, copies, state, slot)
            if (its_quorum, its_step) > (quorum, step):
                words = f"it votes on step {its_step} of quorum {its_quorum}, this group on step {step} of {quorum}"
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

    def __repr__(self) -> str:
        return f"Spoke({self._why or 'up'})"

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
            kind, flags, quorum, step, reason = word
            if (quorum, step) == (vote.quorum, vote.step) and kind == _DECISION:
                self.expects_start = bool(flags & _YES)
                return Decision(
                    bool(flags & _YES), reason, bool(flags & _OPEN), flags >> _COPIES & _OF_COPIES,
                    bool(flags & _DIFFER), bool(flags & _WRONG), bool(flags & _DISPUTED), bool(flags & _FAULTY),
                )  # fmt: skip

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
            kind, flags, quorum, step, _ = word
            if kind == _START:
                self.expects_start, self.connected = False, not flags & _ALONE
                return bool(flags & _YES), quorum, step
        return None

    def end(self, why: str) -> None:
        """End the vote and release waiting callers in this process. From any thread."""
        self._why = self._why or why
        shut(self._sock)

    def close(self) -> None:
        self.end("the group was shut down")
        close(self._sock)

    # --- private ------------------------------------------------------------------------------------------------------

    def _say(self, v: RankVote) -> None:
        flags = _OK * v.ok | _BROKEN * v.broken | _LEFT * v.left | v.copies << _COPIES
        try:
            self._sock.sendall(_VOTE.pack(flags, v.contributors, v.quorum, v.step, v.digest, v.state, v.slot))
        except OSError as e:
            raise self._broken(e) from None

    def _word(self, deadline: float) -> tuple[int, int, int, int, str] | None:
        """Return the next message from rank 0, or None if none has come in time."""
        head = self._read(_WORD.size, deadline)
        if head is None:
            return None
        kind, flags, size, quorum, step = _WORD.unpack(head)
        if size > _MAX_REASON:
            raise self._broken(ValueError(f"a reason of {size} bytes"))
        reason = self._read(size, time.monotonic() + 1.0) if size else b""
        if reason is None:
            raise self._broken(TimeoutError("half a message came"))
        return kind, flags, quorum, step, reason.decode(errors="replace")

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
