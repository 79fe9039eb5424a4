"""Journal file in which a lighthouse writes the state for the next one, before it sends it (R8c).

Without a lease, the next one runs on this host. The page cache outlives the process, but not the host. So nothing is flushed, and a file from another boot is ignored.
The file holds two places that are written alternately, and a header that names the valid one. A write that SIGKILL cuts
short leaves the old one valid. (Replacing a file by rename would be as safe, but makes ext4 write to the disk each
time, and a network file system wait for its server.)

Times in the file are from the host's monotonic clock. Processes of one boot share that clock, and like the groups'
clocks it stands still while the host is suspended. A process in another time namespace has another clock and ignores
the times.

One process may use a file at a time; its lock ends with the process. A file that can't be read, or is from another job
or boot, is ignored with a sentence. If a write fails, the content is made void, the lighthouse goes on, and the next
one waits as if there were no file.

Behind a lease (lease_journal.py) the file also serves lighthouses on other hosts. Then everything is flushed, only the
times from another boot are ignored, and the lease must still be held after each write. If a write fails, the lighthouse
ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torchft_x.core.journal import Absent, JournalEntry
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.rpc.codec import messages
from torchft_x.rpc.codec.generic import parse
from torchft_x.rpc.lighthouse.failover.lease import Lease
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits
from torchft_x.timing import POLL

log = logging.getLogger(__name__)

MAX_JOURNAL = 2 * grpc_options.MAX_CLIENT_MESSAGE
"""Bytes that are read at most. A quorum fits in one message, and the other data about its members is smaller."""
MAX_DONE = limits.MAX_MEMBERS * 16
"""Finished supervisors, of all groups and nodes."""

_LOCK_WAIT = 2.0  # seconds; the lighthouse of a killed supervisor dies a moment after its supervisor
_IN_USE = "another lighthouse uses it"
_MAGIC = b"TFXLEDG2"
# At offset 8, written alone if nothing else is new: the grant, the time after which no lease was sent, the newest step.
_GRANTED = struct.Struct("<qdq")
_REST = struct.Struct("<QQI")  # at offset 32: offset, length and checksum of the valid place
_HEADER = 64  # bytes; within one page, so that it is written as a whole


_ENCODE: dict[str, Callable[[Any], Any]] = {
    "members": messages.MEMBER_ENTRY.encode,
    "absent": lambda a: pb.Absent(replica_id=a.replica_id, leased=a.leased, proof=a.proof),
    "left": messages.LEFT.encode,
    "job": str,
}
"""Encoders of the parts of a `JournalEntry` that are encoded again only when they change, by field."""


@dataclass(frozen=True, slots=True)
class JournalContents:
    """Content of a journal."""

    entry: JournalEntry | None = None
    done: tuple[pb.Done, ...] = ()


class Journal:
    """Writer and reader of a journal file. Not thread-safe. Made by `open_local_journal` or `open_epoch_journal`."""

    def __init__(self, fd: int, path: str, boot_id: str, run: bytes, lease: Lease | None = None) -> None:
        self.path = path
        self._lease = lease  # the lease of one of several lighthouses; None: there is only this one
        self._fd = fd  # locked; closed by close()
        self._boot_id = boot_id  # this host's present boot
        self._head = pb.Journal(wire=grpc_options.WIRE, boot_id=boot_id, run=run, clock=_clock()).SerializeToString()
        # By field of `JournalEntry` and `pb.Journal`: its content as kept last, and the bytes.
        self._parts: dict[str, tuple[tuple[Any, ...], bytes]] = dict.fromkeys(_ENCODE, ((), b""))
        self._quorum: tuple[int, bytes] = (0, b"")  # id of the quorum kept last, and the quorum packed
        self._open: dict[int, bytes] = {}  # the open quorums packed, by id
        self._done: dict[tuple[str, int], bytes] = {}  # finished supervisors, encoded, by group and node
        self._granted = (0, math.nan, 0)  # values of _GRANTED as kept last; nan: unknown
        self._place = (_HEADER, 0)  # offset and length of the valid place
        self._void = False  # the last write failed

    def __repr__(self) -> str:
        return f"Journal({self.path}, quorum {self._quorum[0]}, granted through {self._granted[0]})"

    def keep(self, entry: JournalEntry, packed: bytes) -> None:
        """Write an entry, whose quorum is `packed`. Raises no error of the file system."""
        leased = math.nan if entry.leased is None else entry.leased
        granted = (entry.granted_through, leased, entry.reached)
        changed = [name for name, (content, _) in self._parts.items() if getattr(entry, name) != content]
        same = not changed and entry.quorum.id == self._quorum[0] and [q.id for q in entry.open] == list(self._open)
        if same and not self._void:
            self._write_grant(granted)
            return
        for name in changed:
            content = getattr(entry, name)
            part: dict[str, Any] = {name: map(_ENCODE[name], content)}
            self._parts[name] = (content, pb.Journal(**part).SerializeToString())
        known = self._open | dict([self._quorum])
        self._open = {q.id: known.get(q.id) or messages.pack(q) for q in entry.open}
        self._quorum = (entry.quorum.id, packed)
        self._granted = granted
        self._write()

    def keep_done(self, done: pb.Done) -> None:
        """Write that a supervisor has finished and need not report again. Raises no error of the file system."""
        self._done[done.group, done.node] = pb.Journal(done=[done]).SerializeToString()
        self._write()

    def drop_done(self, groups: Collection[str]) -> None:
        """Write that the job no longer has these groups, and drop their finished supervisors. Raises as `keep_done`."""
        self._done = {key: data for key, data in self._done.items() if key[0] not in groups}
        self._write()

    def end(self) -> None:
        """Make the journal void, because the job is over. Behind a lease, only check the lease.

        The lease's entry records the end, after the supervisors have been told."""
        if self._lease is not None:
            self._lease.confirm()
        else:
            self.void()

    def void(self) -> None:
        """Make the file's content invalid. Logs an error of the file system."""
        try:
            os.pwrite(self._fd, bytes(_HEADER), 0)
        except OSError as e:
            log.error(
                "%s can't be made void (%s): remove it before a lighthouse starts here again.", self.path, e.strerror
            )

    def close(self) -> None:
        os.close(self._fd)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        quorums = pb.Journal(quorum=self._quorum[1], open=self._open.values()).SerializeToString()
        data = b"".join((self._head, *(part for _, part in self._parts.values()), quorums, *self._done.values()))
        begin, length = self._place
        at = _HEADER if _HEADER + len(data) <= begin else begin + length
        rest = _REST.pack(at, len(data), zlib.crc32(data))
        try:
            self._put(data, at)
            self._flush()
            self._put(_MAGIC + _GRANTED.pack(*self._granted) + rest, 0)
            self._flush()
        except OSError as e:
            self._fail(e)
            return
        self._confirm()
        self._place = (at, len(data))
        if self._void:
            self._void = False
            log.warning("%s can be written again.", self.path)

    def _write_grant(self, granted: tuple[int, float, int]) -> None:
        self._granted = granted
        try:
            self._put(_GRANTED.pack(*granted), len(_MAGIC))
            self._flush()
        except OSError as e:
            self._fail(e)
            return
        self._confirm()

    def _flush(self) -> None:
        """Flush for other hosts. Data and header are flushed in this order, so that no header precedes its data."""
        if self._lease is not None:
            os.fdatasync(self._fd)

    def _confirm(self) -> None:
        if self._lease is not None:
            self._lease.confirm()

    def _put(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            if written == 0:
                raise OSError(0, "nothing was written")
            view, at = view[written:], at + written

    def _fail(self, error: OSError) -> None:
        if self._lease is not None:
            self._lease.lose(f"{self.path} can't be written ({error.strerror}): make room there")
        if not self._void:
            self._void = True
            log.warning(
                "%s can't be written (%s). The lighthouse goes on; one that starts here after it will have to wait for "
                "all groups, or for the end of their leases.",
                self.path,
                error.strerror,
            )
        self.void()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> JournalContents:
        """Return what an earlier lighthouse has written, if it is reliable; otherwise make the file void."""
        try:
            found = self._read()
        except (OSError, RefusedError) as e:
            log.warning("%s is ignored: %s", self.path, e.strerror if isinstance(e, OSError) else e)
            if self._lease is None:  # behind a lease the file must stay, as the sign that a lighthouse has written
                self.void()
            return JournalContents()
        return found or JournalContents()

    def _read(self) -> JournalContents | None:
        header = os.pread(self._fd, _HEADER, 0)
        if not header.strip(b"\0"):
            return None  # the file is new, or void
        if len(header) < len(_MAGIC) + _GRANTED.size + _REST.size or not header.startswith(_MAGIC):
            raise RefusedError("it is not a lighthouse's; name another file with --state_file.")
        granted, leased, reached = _GRANTED.unpack_from(header, len(_MAGIC))
        at, length, checksum = _REST.unpack_from(header, len(_MAGIC) + _GRANTED.size)
        if length > MAX_JOURNAL or at > os.fstat(self._fd).st_size:
            raise RefusedError(f"it says that it holds {length} bytes, at most {MAX_JOURNAL} are read.")
        data = os.pread(self._fd, length, at)
        if len(data) != length or zlib.crc32(data) != checksum:
            raise RefusedError("it is damaged.")
        journal = parse(pb.Journal, data, "journal")
        self._check_origin(journal)
        same_boot = self._same_boot(journal)
        leased = leased if same_boot and journal.clock == _clock() else math.nan
        found = from_proto(journal, granted, leased, reached, "" if same_boot else journal.boot_id)
        self._place = (at, length)
        self._done = {(d.group, d.node): pb.Journal(done=[d]).SerializeToString() for d in found.done}
        return found

    def _same_boot(self, journal: pb.Journal) -> bool:
        return bool(self._boot_id) and journal.boot_id == self._boot_id

    def _check_origin(self, journal: pb.Journal) -> None:
        ours = pb.Journal.FromString(self._head)
        if journal.wire != ours.wire:
            raise RefusedError(
                f"another version of torchft_x has written it (wire {journal.wire}, this is {ours.wire})."
            )
        if self._lease is None and not self._same_boot(journal):
            raise RefusedError("it was written before this host was started again, or on another host.")
        if journal.run != ours.run:
            raise RefusedError("another job has written it, or one with another token.")


def from_proto(p: pb.Journal, granted: int, leased: float, reached: int, boot_id: str) -> JournalContents:
    """Decode a journal. Raises `RefusedError` for a value that exceeds the limits of the wire.

    `leased` is the time after which no lease was sent; nan: unknown, and no time in the journal is valid."""
    most = limits.MAX_MEMBERS * (1 + limits.MAX_FOLLOWED)  # members of the newest quorum and of all open ones
    if (
        max(len(p.members), len(p.absent), len(p.left), len(p.job)) > most
        or len(p.done) > MAX_DONE
        or len(p.open) > limits.MAX_FOLLOWED
    ):
        raise RefusedError(
            f"it names {len(p.members)} members, {len(p.done)} supervisors, {len(p.open)} quorums: too many."
        )
    entry = None
    if p.quorum:
        known = math.isfinite(leased)
        absent = tuple(_absent(a, known) for a in p.absent)
        older = tuple(map(messages.unpack, p.open))
        newest, granted = messages.unpack(p.quorum), limits.check_whole(granted, "granted_through")
        newest_step = limits.check_whole(reached, "reached")
        members, left = tuple(map(messages.MEMBER_ENTRY.decode, p.members)), tuple(map(messages.LEFT.decode, p.left))
        job = tuple(limits.check_text(group, "group") for group in p.job)
        boot_id, since = limits.check_text(boot_id, "boot_id"), leased if known else None
        entry = JournalEntry(newest, granted, members, older, absent, since, newest_step, left, job, boot_id)
    return JournalContents(entry, tuple(p.done))


def _absent(p: pb.Absent, known: bool) -> Absent:
    """Decode an absent member. `known`: whether its time is from this process's clock."""
    leased = p.leased if known and p.HasField("leased") and math.isfinite(p.leased) else None
    return Absent(limits.check_name(p.replica_id), leased, limits.check_text(p.proof, "proof"))


def _clock() -> str:
    """Return the name of this process's time namespace, and so of its monotonic clock; '' without namespaces."""
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return ""


def fingerprint(token: str | None, job: str | None) -> bytes:
    """Return a job's fingerprint, which distinguishes jobs and reveals nothing about the token."""
    return hashlib.sha256(f"torchft_x ledger\n{job or ''}\n{token or ''}".encode()).digest()[:16]


def open_local_journal(path: str, *, boot_id: str, run: bytes) -> Journal | None:
    """Open the journal file, and create it if it is absent. Raises `ConfigError` if another lighthouse uses it.

    If it can't be used, log a sentence and return None."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        why = _why_not(fd)
        if not why:
            return Journal(fd, path, boot_id, run)
        os.close(fd)
    except OSError as e:
        why = e.strerror or str(e)
    if why == _IN_USE:
        raise ConfigError(
            f"Another lighthouse runs and uses {path}: stop it, or give this job another --run_dir (or --state_file)."
        )
    log.warning(
        "%s can't be used (%s). Without it a lighthouse that is started again has to wait for all groups, or for the end "
        "of their leases. Name another file with --state_file.",
        path,
        why,
    )
    return None


def _why_not(fd: int) -> str:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    until = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
        except BlockingIOError:
            if time.monotonic() > until:
                return _IN_USE
            time.sleep(POLL)
        except OSError as e:
            return f"it can't be locked: {e.strerror}"
