"""A thread that answers the supervisor's requests after an event: Python stacks, PyTorch's Flight Recorder.

It listens on a unix socket in the workers' private folder. A request is a word and a newline; an answer is its length
(8 bytes, little endian) and as many bytes. The thread is Python's and ends before Python does (`close` waits for it). A
thread that wants Python's lock when Python ends would abort the process, as those of torch's own server do.

The thread needs Python's lock. While another thread holds the lock and sleeps, the supervisor sends this thread SIGURG,
which writes the stacks into memory without the lock (``faulthandler``). No other thread gets that signal, and a process
that doesn't expect it ignores it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.timing import PATIENCE, POLL, TIMING

logger = logging.getLogger(__name__)

STACKS, RECORDER, HANG = b"stacks", b"recorder", b"hang"
_WORD = 32  # largest number of bytes of a request
_LENGTH = struct.Struct("<Q")
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_calls: list[Any] = []  # keeps the callbacks alive, because Python keeps no reference


class QueryServer:
    """Server for one process's supervisor, from construction until `close`. Owns the socket and the thread."""

    def __init__(self, folder: str, rank: int) -> None:
        """Start the server. Raises OSError."""
        self._path = os.path.join(folder, f"{rank}.sock")
        self._closing = False  # set once, by `close`
        self.thread_id = 0  # kernel id of the thread if it may be sent SIGURG; else 0
        self._stacks = os.memfd_create("torchft_x-stacks", os.MFD_CLOEXEC)  # memory that SIGURG writes to
        lead(os.path.join(folder, f"{rank}.stacks"), self._stacks)
        self._listener = _listen(folder, f"{rank}.sock")
        self._answers = _answers()  # handlers by request
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="torchft_x-answers", daemon=True)
        self._thread.start()
        started.wait(TIMING.dump_answer)

    def close(self) -> None:
        """Stop answering, and return when the thread has ended."""
        self._closing = True
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        shut(self._listener)  # wakes the thread
        self._thread.join(PATIENCE)

    def _run(self, started: threading.Event) -> None:
        with contextlib.suppress(Exception):
            if _answer_signal(self._stacks):
                self.thread_id = threading.get_native_id()
        started.set()
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            not_inherited(connection)
            try:
                self._serve(connection)
            except Exception as e:  # the client is gone; serve the next one
                logger.debug("a question was not answered: %s", e)
            finally:
                close(connection)
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(TIMING.dump_answer)
        word = b""
        while not word.endswith(b"\n") and len(word) < _WORD:
            more = connection.recv(_WORD)
            if not more:
                return
            word += more
        word, _, argument = word.strip().partition(b" ")
        answer = self._answers.get(word)
        if (answer is None and word != HANG) or self._closing:
            return
        data = hang(argument) if answer is None else answer()
        connection.sendall(_LENGTH.pack(len(data)) + data)


def _answers() -> dict[bytes, Callable[[], bytes]]:
    found: dict[bytes, Callable[[], bytes]] = {STACKS: _python_stacks}
    torch = sys.modules.get("torch._C._distributed_c10d")
    recorder = getattr(torch, "_dump_fr_trace_json", None)  # absent in some versions of torch
    if recorder is not None:
        found[RECORDER] = recorder
    return found


def _python_stacks() -> bytes:
    """Return the stacks of all threads, which stand still meanwhile because this thread holds Python's lock."""
    fd = os.memfd_create("torchft_x-answer", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _answer_signal(fd: int) -> bool:
    """Make SIGURG, sent to this thread, write the stacks to `fd`. Return False if the signal is in use already."""
    if signal.getsignal(signal.SIGURG) != signal.SIG_DFL:
        return False
    faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGURG})
    return True


def _listen(folder: str, name: str) -> socket.socket:
    """Listen on a socket in `folder` through a short path, because the kernel allows 107 bytes."""
    listener = not_inherited(socket.socket(socket.AF_UNIX))
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        listener.bind(f"/proc/self/fd/{at}/{name}")
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(at)
    return listener


def lead(path: str, fd: int) -> None:
    """Link `path` to the memory behind `fd`. The link is valid as long as this process lives."""
    partial = f"{path}.{os.getpid()}"
    os.symlink(f"/proc/{os.getpid()}/fd/{fd}", partial)
    os.replace(partial, path)


def hang(argument: bytes) -> bytes:
    """Hang the main thread for `argument` seconds, or for ever if empty. Return ``1`` if it will hang, else ``0``.

    Python runs the call between two of its instructions, and after a library's call. The other threads go on: the process
    answers, but its training stands still, as with a data loader that never returns (docs/operate.md#break-it-on-purpose).
    """
    try:
        seconds = float(argument) if argument else math.inf
    except ValueError:
        return b"0"
    if not seconds > 0:
        return b"0"

    def stand_still(_: Any) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(POLL, max(0.0, end - time.monotonic())))
        return 0

    call = _CALL(stand_still)
    _calls.append(call)
    return b"0" if ctypes.pythonapi.Py_AddPendingCall(call, None) else b"1"
