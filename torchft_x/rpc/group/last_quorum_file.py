"""What a life of a group writes down for its supervisor, with several lighthouses: which quorum it has received last.

It is written before the quorum is followed and read when the process has ended, so that the end can be told together
with what the life had received (`core.quorum.acceptors`). The supervisor makes the file, and says in it to which chain of lives
the new one belongs and what the earlier ones had received. The page cache outlives the process, so nothing is flushed;
written in place, in two places by turns, as the ledger (lighthouse/journal.py).
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib

from torchft_x.core.types import Quorum
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.limits import check_text

MAX_RECORD = 2 * grpc_options.MAX_MESSAGE
"""Bytes that are read: two quorums."""

_MAGIC = b"TFXRECD1"
_WHERE = struct.Struct("<8sQQI")  # magic; where what counts begins, its length, its checksum
_HEADER = 64  # bytes; far within one page, so that it is written as a whole


class LastQuorumFile:
    """A life's side. Not thread-safe. Made by `open_record`."""

    def __init__(self, fd: int, path: str, replica_id: str) -> None:
        """Raises `OSError` or `RefusedError`."""
        self.path = path
        self._fd = fd  # locked; closed by close()
        found = _read(fd)
        self._place = _place_of(fd)  # begin and length of what counts now
        newest = _newer(found.before if found.HasField("before") else None, found)
        self.chain = check_text(found.chain, "chain", 128)  # of lives that the supervisor starts
        self.before: Quorum | None = None if newest is None else messages.QUORUM.decode(newest)  # received before it
        self._head = pb.Record(chain=found.chain, before=newest, replica_id=replica_id).SerializeToString()
        self._newest = 0  # id of the quorum written down last
        self._put(self._head)

    def __repr__(self) -> str:
        return f"LastQuorumFile({self.path}, quorum {self._newest})"

    def keep(self, quorum: pb.Quorum) -> None:
        """The life has received it, and nothing has come of that yet. Raises `OSError`."""
        if quorum.id > self._newest:
            self._put(self._head + pb.Record(quorum=quorum).SerializeToString())
            self._newest = quorum.id

    def close(self) -> None:
        """May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _put(self, data: bytes) -> None:
        self._place = _put(self._fd, data, self._place)


def open_record(path: str, replica_id: str) -> LastQuorumFile:
    """The file that the supervisor has made, with this life's name in it. Raises `ConfigError`."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LastQuorumFile(fd, path, replica_id)
    except BlockingIOError:
        why = "another Manager of this group uses it; a process has one at a time"
    except OSError as e:
        why = e.strerror or str(e)
    except RefusedError as e:
        why = str(e)
    if fd >= 0:
        os.close(fd)
    raise ConfigError(
        f"{path}, where this group writes down for its supervisor which quorum it has received, can't be used: "
        f"{why.rstrip('.')}. With several lighthouses nobody could go on without it, should it die."
    )


def unwritten(path: str, error: OSError) -> str:
    """Why a life must end that can't write a quorum down, and what to do."""
    return (
        f"{path} can't be written ({error.strerror}), so nobody would know which quorum this group has received; it stops "
        "before it follows one that is not written down. Make room on the disk of the temporary directory (TMPDIR)."
    )


# --- the supervisor's side -------------------------------------------------------------------------------------------


def make_record(path: str, chain: str, before: bytes) -> None:
    """For a life that is about to begin. `before`: as `read_word` has told. Raises `OSError`."""
    record = pb.Record(chain=chain)
    if before:
        record.before.ParseFromString(before)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _put(fd, record.SerializeToString(), (_HEADER, 0))
    finally:
        os.close(fd)


def read_word(path: str) -> tuple[bytes, bytes]:
    """Of a life that has ended: a serialized `LastWord`, and the newest quorum that it or one before it has received.

    The first is empty if it never spoke to a lighthouse, or if nobody can say what it had received; both are then.
    Raises `OSError` or `RefusedError`, if what is there can't be relied on.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = _read(fd)
    finally:
        os.close(fd)
    newest = _newer(found.before if found.HasField("before") else None, found)
    before = b"" if newest is None else newest.SerializeToString()
    if not found.replica_id:
        return b"", before
    quorum = found.quorum if found.HasField("quorum") else None
    word = pb.LastWord(replica_id=found.replica_id, quorum=quorum, chain=found.chain)
    return word.SerializeToString(), before


# --- the file --------------------------------------------------------------------------------------------------------


def _newer(before: pb.Quorum | None, found: pb.Record) -> pb.Quorum | None:
    """The newest quorum that any life of the chain has received."""
    own = found.quorum if found.HasField("quorum") else None
    if own is None or (before is not None and before.id > own.id):
        return before
    return own


def _put(fd: int, data: bytes, place: tuple[int, int]) -> tuple[int, int]:
    """Write it beside what counts now, which is at `place`, then let it count: where it is."""
    begin, length = place
    at = _HEADER if _HEADER + len(data) <= begin else begin + length
    _write(fd, data, at)
    _write(fd, _WHERE.pack(_MAGIC, at, len(data), zlib.crc32(data)), 0)
    return at, len(data)


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        if written == 0:
            raise OSError(0, "nothing was written")
        view, at = view[written:], at + written


def _place_of(fd: int) -> tuple[int, int]:
    _, at, length, _ = _WHERE.unpack(os.pread(fd, _WHERE.size, 0))
    return at, length


def _read(fd: int) -> pb.Record:
    header = os.pread(fd, _WHERE.size, 0)
    if len(header) < _WHERE.size or not header.startswith(_MAGIC):
        raise RefusedError("it is not what a supervisor makes.")
    _, at, length, checksum = _WHERE.unpack(header)
    if length > MAX_RECORD or at > os.fstat(fd).st_size:
        raise RefusedError(f"it says that it holds {length} bytes, at most {MAX_RECORD} are read.")
    data = os.pread(fd, length, at)
    if len(data) != length or zlib.crc32(data) != checksum:
        raise RefusedError("it is damaged.")
    return messages.parse(pb.Record, data, "record")
