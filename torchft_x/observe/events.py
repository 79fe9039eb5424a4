"""The event log (docs/events.md): one JSON object per line, one file per process, in the run directory.

Fields of every line: ``t`` (unix seconds), ``mono`` (monotonic seconds), ``pid``, ``role``, ``event``, and where
known ``group``, ``replica_id``, ``rank``, ``attempt``. Names and fields per event: docs/events.md.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.address_files import make_run_dir

EVENTS = frozenset([
    "start", "joined", "quorum", "configure", "rehearsal", "restored", "held", "memory", "heal_begin", "heal_end",
    "commit", "drop", "redo", "adopt", "abort", "member_lost", "new_lineage", "leave", "exit", "restart", "scale",
    "warm", "dump", "checkpoint", "metrics", "fault", "error",
])  # fmt: skip

BEGIN = '{"t":'
"""Beginning of each line."""
_INCOMPLETE = ".incomplete"
_TAIL = 1 << 16  # bytes at the end of a log that are searched for its last event
_PART = ".p{:04}.jsonl"  # sorts behind the first part's ".jsonl"
PART_BYTES, PARTS = 64 << 20, 16
"""Size of a file, and number of files that are kept, of one process. The first one and the newest others are kept."""
_KINDS: tuple[tuple[str, type], ...] = (
    ("t", float),
    ("mono", float),
    ("event", str),
    ("duration", float),
    *((name, int) for name in ("pid", "rank", "attempt", "step", "quorum", "number", "participants", "samples")),
    *((name, list) for name in ("members", "lost")),
)
"""Types of the fields on which readers of events rely, see docs/events.md."""

Listener = Callable[[dict[str, Any]], object]

_listeners: tuple[Listener, ...] = ()  # replaced as a whole, so that emit() needs no lock to read it


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener(event)` for every event that any `EventLog` of this process emits; return a function to end this.

    It runs on the emitting thread, between two instructions of the protocol: it must be quick and must not raise
    (``queue.SimpleQueue().put`` is the usual one). Events reach listeners with or without a run directory.
    """
    global _listeners
    _listeners = (*_listeners, listener)

    def unsubscribe() -> None:
        global _listeners
        _listeners = tuple(known for known in _listeners if known is not listener)

    return unsubscribe


class EventLog:
    """Event log of one process, ``<run_dir>/events/<role>-<group>-<pid>.jsonl``.

    Without a run directory only listeners get the events. With TORCHFT_X_EVENTS=stdout they are printed, too.

    Thread-safe. A line is written with one ``write`` call and flushed, so a killed process leaves whole lines. A full
    disk must not end training: the first failed write switches the log off, with one message on stderr, and creates an
    empty file ``<file>.incomplete`` for readers. A file that has become too large (`PART_BYTES`) is closed, and the log
    goes on in ``<file>.p0002.jsonl``; files are never renamed.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None, role: str, **common: Any) -> None:
        self._lock = threading.Lock()  # guards _fd and _common
        self._common: dict[str, Any] = {"pid": os.getpid(), "role": role, **_present(common)}
        self._fd: int | None = None  # None: no file is written
        self._prints = env.read(env.EVENTS) == "stdout"  # False after a failed write to stdout
        self._path = ""  # path of the open file
        self._first = ""  # path of the first part
        self._part, self._size = 1, 0  # number and bytes of the open file
        self.listeners: list[Listener] = []  # of this log alone
        if run_dir is not None:
            folder = Path(run_dir) / "events"
            make_run_dir(run_dir)
            folder.mkdir(parents=True, exist_ok=True)
            name = [
                role,
                *(str(common[k]) for k in ("group", "node", "rank") if common.get(k) is not None),
                str(os.getpid()),
            ]
            path = folder / ("-".join(name).replace("/", "_") + ".jsonl")
            self._first = str(path)
            self._open(str(path))

    def bind(self, **common: Any) -> None:
        """Add fields to every later line."""
        with self._lock:
            self._common.update(_present(common))

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line. `event` is one of `EVENTS`, else raises ValueError; fields that are None are left out."""
        if event not in EVENTS:
            raise ValueError(f"unknown event {event!r}; add it to torchft_x.observe.events.EVENTS and docs/events.md")
        listeners = (*_listeners, *self.listeners)
        if self._fd is None and not self._prints and not listeners:
            return
        with self._lock:
            line = {"t": time.time(), "mono": time.monotonic(), **self._common, "event": event, **_present(fields)}
            if self._fd is not None or self._prints:
                data = (json.dumps(line, default=str, separators=(",", ":")) + "\n").encode()
                self._print(data)
                self._write(data)
        for listener in listeners:
            listener(line)

    def _print(self, data: bytes) -> None:
        """Print a line. Bypasses `sys.stdout`, whose buffer may hold a part of a line. The caller holds the lock."""
        view = memoryview(data) if self._prints else memoryview(b"")
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:
            self._prints = False

    def _write(self, data: bytes) -> None:
        """Append a line to the file, and switch the log off if that fails. The caller holds the lock."""
        if self._fd is None:
            return
        try:
            if self._size >= PART_BYTES:
                self._next_part()
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(data)
        except OSError as e:
            os.close(self._fd)
            self._fd = None
            os.write(2, f"torchft_x: events are no longer written to {self._path}: {e}\n".encode())
            with contextlib.suppress(OSError):  # an empty file needs room for its name only
                os.close(os.open(self._path + _INCOMPLETE, os.O_CREAT | os.O_CLOEXEC, 0o644))

    def _open(self, path: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        before, self._fd, self._path, self._size = self._fd, fd, path, os.fstat(fd).st_size
        if before is not None:
            os.close(before)

    def _next_part(self) -> None:
        """Open the next part and delete the oldest but the first. Raises OSError, and then keeps the open file."""
        self._part += 1
        self._open(self._part_name(self._part))
        if self._part > PARTS:
            with contextlib.suppress(OSError):
                os.unlink(self._part_name(self._part - PARTS + 1))

    def _part_name(self, number: int) -> str:
        return self._first.removesuffix(".jsonl") + _PART.format(number)

    def close(self) -> None:
        self.listeners.clear()
        with self._lock:
            self._prints = False
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


class EventTail:
    """Reader of a running job's events. Returns each event once."""

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(run_dir, "events")
        self._read: dict[Path, int] = {}  # by file: number of bytes read, up to the end of a line

    def new(self) -> list[dict[str, Any]]:
        """Return the events written since the last call, in order of time."""
        events = []
        for path in sorted(self._folder.glob("*.jsonl")):
            begin = self._read.get(path, 0)
            try:
                with path.open("rb") as f:
                    f.seek(begin)
                    data = f.read()
            except FileNotFoundError:  # the part was deleted, as the oldest of too many
                continue
            end = data.rfind(b"\n") + 1  # a line without its end is still being written, or its writer was killed
            self._read[path] = begin + end
            events += [e for line in data[:end].split(b"\n") if (e := _parse(line))]
        return sorted(events, key=lambda e: float(e.get("t", 0.0)))


def whose(path: Path) -> str:
    """Return the file name of the first part of a log, which identifies all parts of one process's log."""
    return re.sub(r"\.p\d{4,}\.jsonl$", ".jsonl", path.name)


def incomplete(run_dir: str | os.PathLike[str]) -> list[str]:
    """Return the logs of this run that could not be written to their end (a full disk)."""
    return [
        str(path).removesuffix(_INCOMPLETE) for path in sorted(Path(run_dir, "events").glob(f"*.jsonl{_INCOMPLETE}"))
    ]


def read_events(run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return all events of a run in order of time. Skips a torn last line, of a process killed while writing."""
    return EventTail(run_dir).new()


def last_event(run_dir: str | os.PathLike[str], role: str, name: str = "") -> dict[str, Any] | None:
    """Return the newest event of all processes of a role; with `name`, the newest of that name. None if there is none."""
    return max(last_events(run_dir, role, name), key=lambda e: float(e["t"]), default=None)


def last_events(run_dir: str | os.PathLike[str], role: str, name: str = "") -> list[dict[str, Any]]:
    """Return the newest event of each process of a role, or the newest of that `name`. Reads only the end of each log."""
    found: list[dict[str, Any]] = []
    for path in Path(run_dir, "events").glob(f"{role}-*.jsonl"):
        with contextlib.suppress(OSError), path.open("rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - _TAIL))
            events = map(_parse, reversed(f.read().split(b"\n")))
            found += islice((e for e in events if e and name in ("", e.get("event"))), 1)
    return found


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None for a torn line, or one that this library has not written."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if is_event(value) else None


def is_event(value: object) -> bool:
    """Return whether a value is an event whose fields have the types that docs/events.md names."""
    return isinstance(value, dict) and all(_is(value, name, kind) for name, kind in _KINDS)


def _is(event: dict[str, Any], name: str, kind: type) -> bool:
    value = event.get(name)
    if value is None:
        return name != "t"
    if kind is list:  # a list of replica ids, or one replica id
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(x, str) for x in value))
    if kind is str:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and not isinstance(value, int)):
        return False
    return -(2**63) < value < 2**63  # infinity and nan fail this, too


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if v is not None}
