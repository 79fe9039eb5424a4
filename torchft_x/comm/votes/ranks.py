"""How the ranks of a group agree: each tells rank 0 its vote, and hears from it what is decided and how the next step begins.

Rank 0 speaks for its group, so everything a step needs from inside the group goes through it, on one TCP connection to
each other rank that lasts as long as the group. The training threads write and read the sockets themselves: a step
costs each rank one message up and two down, and neither gRPC nor another thread. One place decides, so no two ranks can
decide differently (I2); who doesn't hear the decision knows nothing, and can only stop.

Messages carry the quorum and the step they are about: what is left over from a step that was given up is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchft_x.comm.store.create import listen
from torchft_x.comm.votes.handshake import SECRET_BYTES, Acceptor, introduction
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import CollectiveError, DeadlineError, RefusedError, UnreachableError

_AWAKE = 0.00003  # seconds of looking before a sleep; see `comm.votes.mesh`
_TICK = 0.05  # seconds until an end is noticed while the ranks connect
_VOTE = struct.Struct("!BIqqQQ")  # flags, contributors, quorum, step, digest, state
_WORD = struct.Struct("!BHHqq")  # kind, flags, bytes of the reason that follows, quorum, step
_DECISION, _START = 1, 2  # kinds of words
_OK, _BROKEN, _LEFT = 1, 2, 4  # flags of a vote
_YES, _OPEN, _ALONE, _DIFFER, _WRONG = 1, 2, 4, 256, 512  # flags of a word
_COPIES = 3  # bits of these before the five about copies
_OF_COPIES = 31
_MAX_REASON = 1000  # bytes


@dataclass(frozen=True, slots=True)
class RankVote:
    """What one rank says about step `step` of quorum `quorum`."""

    quorum: int
    step: int  # committed before it
    ok: bool
    broken: bool = False  # see `core.messages.Vote`
    digest: int = 0  # 64 bits, unsigned
    contributors: int = 0
    left: bool = False  # it has given the step up, and waits for no decision
    copies: int = 0  # 5 bits, see `core.training.memory_checkpoint.RankWord`
    state: int = 0  # digest of what it starts from, 64 bits, unsigned; 0: not compared


@dataclass(frozen=True, slots=True)
class Decision:
    commit: bool
    reason: str = ""  # why not
    undecided: bool = False  # another group may have committed it
    copies: int = 0  # 5 bits, see `core.training.memory_checkpoint.GroupWord`
    differ: bool = False  # the groups hold different states
    wrong: bool = False  # and this group's is not that of most


class Hub:
    """Rank 0's end. One thread at a time, but for `end`.

    Args:
        host: address or name of this machine, to listen on and to be found by.
        ranks: of the group, this one included.
    """

    def __init__(self, host: str, ranks: int) -> None:
        self.ranks = ranks  # fixed
        self.owes_start = False  # a commit was told, and the next step's beginning was not
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._listener: socket.socket | None
        self._listener, shown = listen(host, 0, backlog=max(256, ranks))
        self._listener.setblocking(False)
        self.place = json.dumps(
            {"host": shown, "port": self._listener.getsockname()[1], "secret": self._secret.hex()}
        ).encode()
        self._lock = threading.Lock()  # guards the three below; nothing waits under it
        self._open: list[socket.socket] = [self._listener]  # all there are
        self._why = ""  # it has ended; a clause
        self._using = threading.Lock()  # held by who uses the sockets; who has it may close them
        self._links: dict[int, socket.socket] = {}  # rank -> connection, which doesn't block
        self._heard: dict[int, bytes] = {}  # rank -> what it has said and nobody has read

    def __repr__(self) -> str:
        return f"Hub({len(self._links)} of {self.ranks - 1} ranks{': ' * bool(self._why)}{self._why})"

    def gather(self, quorum: int, step: int, timeout: float) -> dict[int, RankVote]:
        """The other ranks' votes on this step, by rank.

        Raises `DeadlineError` naming who has not voted, `CollectiveError` if a connection broke or after `end`.
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
        """Tell all ranks. What can't be told is noticed by the next `gather`."""
        reason = decision.reason.encode(errors="replace")[:_MAX_REASON]
        flags = _YES * decision.commit | _OPEN * decision.undecided | decision.copies << _COPIES
        flags |= _DIFFER * decision.differ | _WRONG * decision.wrong
        self._tell(_WORD.pack(_DECISION, flags, len(reason), quorum, step) + reason)
        self.owes_start = decision.commit

    def start(self, quorum: int, step: int, *, runs_on: bool, connected: bool) -> None:
        """After a commit: the next step begins in the quorum in hand, or all ask for another one. `connected`: the group
        has a session with the lighthouse."""
        self.owes_start = False
        self._tell(_WORD.pack(_START, _YES * runs_on | _ALONE * (not connected), 0, quorum, step))

    def end(self, why: str) -> None:
        """Release whoever waits here or, by the closed connections, at the other ends. From any thread."""
        with self._lock:
            self._why = self._why or why
            for sock in self._open:
                shut(sock)

    def close(self) -> None:
        self.end("the group was shut down")
        with self._using, self._lock:
            for sock in self._open:
                close(sock)
            self._open, self._links, self._listener = [], {}, None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> None:
        """The ranks call by themselves; here they are let in."""
        if self._listener is None:
            return
        missing = set(range(1, self.ranks)) - set(self._links)
        with Acceptor(self._listener, self._secret, self._keep, self._drop) as reception:
            while missing:
                self._check(missing, deadline)
                for rank, sock in reception.members(_TICK):
                    if rank in missing:
                        missing.remove(rank)
                        self._links[rank], self._heard[rank] = sock, b""
                    else:
                        self._drop(sock)
        self._drop(self._listener)
        self._listener = None

    def _vote(self, rank: int, sock: socket.socket, quorum: int, step: int) -> RankVote | None:
        """The next one on this step, if it is here."""
        heard = self._heard[rank]
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
            flags, contributors, its_quorum, its_step, digest, state = _VOTE.unpack(heard)
            self._heard[rank] = heard = b""
            if (its_quorum, its_step) == (quorum, step):
                left, broken = bool(flags & _LEFT), bool(flags & _BROKEN)
                ok, copies = bool(flags & _OK), flags >> _COPIES
                return RankVote(quorum, step, ok, broken, digest, contributors, left, copies, state)
            if (its_quorum, its_step) > (quorum, step):
                words = f"it votes on step {its_step} of quorum {its_quorum}, this group on step {step} of {quorum}"
                raise self._broken(rank, words)

    def _sleep(self, missing: Sequence[int], deadline: float) -> None:
        """Until one of them says something."""
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
                with contextlib.suppress(OSError):  # a full buffer, too, is of a rank that has not read for long
                    sock.sendall(data)

    def _broken(self, rank: int, words: str) -> CollectiveError:
        if self._why:
            return CollectiveError(f"the vote inside the group was released: {self._why}.")
        return CollectiveError(f"the connection to group rank {rank} broke: {words}.")

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.append(sock)
            if self._why:
                shut(sock)

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.remove(sock)
        close(sock)


class Spoke:
    """Another rank's end. One thread at a time, but for `end`.

    Args:
        place: what rank 0's `Hub` says of itself.
        rank: this one.

    Raises `UnreachableError` if rank 0 can't be reached within `timeout` seconds, `RefusedError` if that is no place.
    """

    def __init__(self, place: bytes, rank: int, timeout: float) -> None:
        self.expects_start = False  # a commit was told, and the next step's beginning was not
        self.connected = True  # the group had a session with the lighthouse when its newest step began
        self._why = ""  # it has ended; a clause
        self._heard = b""  # and not yet read
        try:
            said = json.loads(place)
            where, secret = (str(said["host"]), int(said["port"])), bytes.fromhex(said["secret"])
            hello = introduction(secret, rank)
        except (ValueError, TypeError, KeyError, struct.error) as e:
            raise RefusedError(f"what group rank 0 says about its place is not understood: {e}.") from None
        try:
            self._sock = not_inherited(socket.create_connection(where, timeout))
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
        """Say it, and wait for what rank 0 decides. `meanwhile` is called once while it is on its way.

        Raises `CollectiveError` if the connection broke or after `end`, `DeadlineError`; then nothing is known.
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
                    bool(flags & _DIFFER), bool(flags & _WRONG),
                )  # fmt: skip

    def leave(self, quorum: int, step: int) -> None:
        """Say that this step is given up. Nothing is waited for."""
        with contextlib.suppress(CollectiveError):  # the next vote says it
            self._say(RankVote(quorum, step, False, broken=True, left=True))

    def start(self, timeout: float) -> tuple[bool, int, int] | None:
        """After a commit: whether the next step begins in the quorum in hand, that quorum, and the step; False: all
        ask for another quorum. None: nothing was said within `timeout` seconds. Raises `CollectiveError` as `vote`."""
        deadline = time.monotonic() + timeout
        while (word := self._word(deadline)) is not None:
            kind, flags, quorum, step, _ = word
            if kind == _START:
                self.expects_start, self.connected = False, not flags & _ALONE
                return bool(flags & _YES), quorum, step
        return None

    def end(self, why: str) -> None:
        """Release who waits here. From any thread."""
        self._why = self._why or why
        shut(self._sock)

    def close(self) -> None:
        self.end("the group was shut down")
        close(self._sock)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _say(self, v: RankVote) -> None:
        flags = _OK * v.ok | _BROKEN * v.broken | _LEFT * v.left | v.copies << _COPIES
        try:
            self._sock.sendall(_VOTE.pack(flags, v.contributors, v.quorum, v.step, v.digest, v.state))
        except OSError as e:
            raise self._broken(e) from None

    def _word(self, deadline: float) -> tuple[int, int, int, int, str] | None:
        """The next one; None: none has come in time."""
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
        """So many bytes, or None. What has come of them stays."""
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
