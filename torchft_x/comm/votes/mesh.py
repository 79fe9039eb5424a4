"""The connections of one set of voting members, and one round of voting. `comm.votes.all_min` decides when."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence

from torchft_x import tls
from torchft_x.comm.store.client import MeetingStore
from torchft_x.comm.votes.handshake import VoteEndpoint, introduction, read_contact
from torchft_x.descriptors import not_inherited
from torchft_x.errors import CollectiveError, DeadlineError, TorchftXError, UnreachableError, first_line
from torchft_x.timing import POLL_FAST

_MAX_NOTICE = 512  # bytes that a member publishes about itself in the store
_AWAKE = 0.0001  # seconds of polling before a sleep: falling asleep and waking up costs half of a turn


class AllMinMesh(VoteEndpoint):
    """One set of members that vote with each other, as seen by one of them.

    Args:
        rank: our number among the members.
        names: replica ids of all members, by rank.
        width: number of integers (int64) in a row.
    """

    def __init__(self, rank: int, names: Sequence[str], config_id: int, width: int) -> None:
        super().__init__()
        self.config_id = config_id
        self.size = len(names)
        self._rank = rank
        self._names = names
        self._deadline = 0.0  # monotonic time until which `connect` waits
        self._message = struct.Struct(f"!Q{width}q")  # number of the turn, and a row
        self._turn = 0  # number of turns started
        self.connecting = self.size > 1  # until `connect` has ended
        self._store: MeetingStore | None = None  # set while connecting
        self._there: dict[int, socket.socket] = {}  # rank to which we send -> connection
        self._back: dict[int, socket.socket] = {}  # rank from which we receive -> connection
        self._receivers = _receivers_of(rank, self.size)  # ranks to which we send, in the order of the rounds

    # --- connecting ---------------------------------------------------------------------------------------------------

    def offer(self, store: MeetingStore, host: str) -> None:
        """Publish our address to the members. Raises `UnreachableError` if the store is lost meanwhile."""
        with self._using:
            self._store = store
            notice = self._listen(host, 256)
            try:
                store.set(_key(self._rank), notice)
            except RuntimeError as e:
                raise UnreachableError(f"The store where the members meet is lost: {first_line(e)}") from None

    def connect(self, timeout: float) -> None:
        """Connect with the members, after `offer`. Ends the mesh if it raises."""
        with self._using:
            self._deadline = time.monotonic() + timeout
            try:
                self._connect()
            except (OSError, RuntimeError, ValueError) as e:
                released = f"{self._label} was released: {self._why}." if self._why else ""
                error: TorchftXError = CollectiveError(released or f"{self._label} failed: {first_line(e)}")
                if isinstance(e, TorchftXError):
                    error = e
                self.end(str(error))
                raise error from None
            finally:
                self._store, self.connecting = None, False

    def _connect(self) -> None:
        store = self._store
        assert store is not None, "offer() comes first"
        unsent = {}
        for rank in self._receivers:
            send = self._call(store, rank)
            if not send():
                unsent[rank] = self._there[rank], send
        wanted = {rank for rank in range(self.size) if self._rank in _receivers_of(rank, self.size)}
        self._accept(wanted, self._back, POLL_FAST, self._check, unsent)

    def _check(self, missing: Iterable[int]) -> None:
        if self._why:
            raise CollectiveError(f"{self._label} was released: {self._why}.")
        if time.monotonic() > self._deadline:
            who = ", ".join(f"rank {rank} ({self._names[rank]})" for rank in sorted(missing))
            raise DeadlineError(f"{self._label} failed: {who} did not come in time.")

    def _call(self, store: MeetingStore, rank: int) -> Callable[[], bool]:
        """Connect to `rank`. Return a function that introduces us, and returns whether it could do so now."""
        while (raw := store.value_within(_key(rank), POLL_FAST)) is None:
            self._check([rank])
        try:
            if len(raw) > _MAX_NOTICE:
                raise ValueError(f"{len(raw)} bytes")
            where, secret = read_contact(raw)
        except (ValueError, TypeError, KeyError) as e:
            raise CollectiveError(
                f"{self._label} failed: what {self._name(rank)} says of itself is no address: {e}."
            ) from None
        hello = introduction(secret, self._rank)

        def send() -> bool:
            try:
                self._there[rank].send(hello)
            except BlockingIOError:
                return False
            except OSError as e:
                raise self._unreachable(rank, where, e) from None
            return True

        try:
            self._there[rank] = self._dial(where, rank)
        except OSError as e:
            raise self._unreachable(rank, where, e) from None
        return send

    def _unreachable(self, rank: int, where: tuple[str, int], cause: OSError) -> CollectiveError:
        self._check([rank])
        words = f"{self._label} failed: {self._name(rank)} can't be reached at {where[0]}:{where[1]}: {cause}."
        return CollectiveError(words, (self._names[rank],))

    def _dial(self, where: tuple[str, int], rank: int) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
        sock = self._keep(not_inherited(tls.client(socket.socket(family, kind, protocol))))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sock.connect_ex(address)
        with selectors.DefaultSelector() as ready:
            ready.register(sock, selectors.EVENT_WRITE)
            while not ready.select(POLL_FAST):
                self._check([rank])
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        return sock

    # --- a turn -------------------------------------------------------------------------------------------------------

    def minimum(self, row: Sequence[int], timeout: float, meanwhile: Callable[[], None] = lambda: None) -> list[int]:
        """Return the element-wise minimum of all members' rows (int64 each).

        The n-th calls of all members belong together. `meanwhile` is called once, while our row is on its way to the
        others (also if there are none).

        Raises `CollectiveError` naming the member whose connection broke, or `DeadlineError`, and ends the mesh:
        after that a new set of members is needed.
        """
        mine, deadline = list(row), time.monotonic() + timeout
        with self._using:
            self._turn += 1
            if self.size == 1:
                meanwhile()
            for nth, there in enumerate(self._receivers):
                self._say(there, mine, deadline)
                if nth == 0:
                    meanwhile()
                mine = list(map(min, mine, self._hear((2 * self._rank - there) % self.size, deadline)))
        return mine

    def _say(self, rank: int, row: Sequence[int], deadline: float) -> None:
        try:
            sock, data = self._there[rank], self._message.pack(self._turn, *row)
            try:
                sent = sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):  # never seen: a message is small, and the one before has been answered
                _send_rest(sock, data[sent:], deadline)
        except (OSError, KeyError) as e:
            raise self._broken(rank, e) from None

    def _hear(self, rank: int, deadline: float) -> Sequence[int]:
        try:
            turn, *row = self._message.unpack(self._receive(self._back[rank], deadline))
            if turn != self._turn:
                raise ConnectionError(f"it is in its turn {turn}, this rank in turn {self._turn}")
        except (OSError, KeyError) as e:
            raise self._broken(rank, e) from None
        return row

    def _receive(self, sock: socket.socket, deadline: float) -> bytes:
        """Receive a message. Raises OSError."""
        data, size = b"", self._message.size
        awake = time.monotonic() + _AWAKE
        while len(data) < size:
            try:
                got = sock.recv(size - len(data))
            except BlockingIOError:
                if time.monotonic() > awake:
                    _sleep_until_readable(sock, deadline)
                continue
            if not got:
                raise ConnectionResetError("connection closed by the other side")
            data += got
        return data

    def _broken(self, rank: int, cause: Exception) -> TorchftXError:
        """End the mesh as the connection to `rank` failed, so that no member waits in vain. Return the error."""
        released = self._why
        error: TorchftXError
        if released:
            error = CollectiveError(f"the vote of {self._short} was released: {released}.")
        elif isinstance(cause, TimeoutError):
            error = DeadlineError(
                f"the vote of {self._short} did not end in time: nothing came from {self._name(rank)}."
            )
        else:
            words = "it was never connected" if isinstance(cause, KeyError) else str(cause)
            error = CollectiveError(
                f"the vote of {self._short} broke at {self._name(rank)}: {words}.", (self._names[rank],)
            )
        self.end(str(error))
        return error

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._names[rank]})"

    @property
    def _short(self) -> str:
        return f"rank {self._rank} of {self.size}"

    @property
    def _label(self) -> str:
        return f"connecting {self._short} for the vote of configuration {self.config_id}"


def _receivers_of(rank: int, size: int) -> list[int]:
    """Return the ranks to which `rank` sends, by round. After the last round every member's row has reached all."""
    return [(rank + (1 << k)) % size for k in range((size - 1).bit_length())]


def _key(rank: int) -> str:
    return f"vote/{rank}"


def _send_rest(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.sendall(data)
    sock.setblocking(False)


def _sleep_until_readable(sock: socket.socket, deadline: float) -> None:
    """Sleep until the socket is readable. Raises TimeoutError at the deadline."""
    with selectors.PollSelector() as ready:
        ready.register(sock, selectors.EVENT_READ)
        if not ready.select(max(deadline - time.monotonic(), 0.001)):
            raise TimeoutError
