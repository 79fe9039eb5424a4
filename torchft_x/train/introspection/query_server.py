"""A thread that answers the supervisor, and only when something has happened: Python stacks, PyTorch's Flight Recorder.

One unix socket in the life's private folder; a question is a word and a newline, an answer its length (8 bytes, little
endian) and so many bytes. The thread is one of Python's, and it has ended before Python does (`close` waits for it): a
thread that wants Python's lock when Python ends would end the process, which torch's own server does.

It needs Python's lock. While another thread holds that and sleeps, the supervisor sends this thread SIGURG, which writes
the stacks into memory without the lock (``faulthandler``). Nobody else gets that signal, and a process that doesn't
expect it ignores it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable

from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.timing import TIMING
from torchft_x.train.introspection.hang import hang

logger = logging.getLogger(__name__)

STACKS, RECORDER, HANG = b"stacks", b"recorder", b"hang"
_WORD = 32  # bytes of a question
_END = 10.0  # seconds in which the answer in hand ends; one takes some ten milliseconds
_LENGTH = struct.Struct("<Q")


class QueryServer:
    """Of one process, from now until `close`."""

    def __init__(self, folder: str, rank: int) -> None:
        """Raises OSError."""
        self._path = os.path.join(folder, f"{rank}.sock")
        self._closing = False  # set once, by `close`
        self.thread_id = 0  # as the kernel counts threads, if this one may be sent SIGURG
        self._stacks = os.memfd_create("torchft_x-stacks", os.MFD_CLOEXEC)  # what SIGURG writes
        lead(os.path.join(folder, f"{rank}.stacks"), self._stacks)
        self._listener = _listen(folder, f"{rank}.sock")
        self._answers = _answers()  # what can be asked for
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="torchft_x-answers", daemon=True)
        self._thread.start()
        started.wait(TIMING.dump_answer)

    def close(self) -> None:
        """Nobody is answered any more. Returns when the thread has ended."""
        self._closing = True
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        shut(self._listener)  # wakes it
        self._thread.join(_END)

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
            except Exception as e:  # who asked is gone; the next one may come
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
    recorder = getattr(torch, "_dump_fr_trace_json", None)  # not in every version of torch
    if recorder is not None:
        found[RECORDER] = recorder
    return found


def _python_stacks() -> bytes:
    """Of all threads. They stand still meanwhile: this one has Python's lock."""
    fd = os.memfd_create("torchft_x-answer", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _answer_signal(fd: int) -> bool:
    """From now on SIGURG, sent to this thread, writes the stacks to `fd`. False: somebody else uses it."""
    if signal.getsignal(signal.SIGURG) != signal.SIG_DFL:
        return False
    faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGURG})
    return True


def _listen(folder: str, name: str) -> socket.socket:
    """A short path, whatever the folder's length: the kernel has 107 bytes for it."""
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
    """`path` leads to the memory behind `fd`, as long as this process lives."""
    partial = f"{path}.{os.getpid()}"
    os.symlink(f"/proc/{os.getpid()}/fd/{fd}", partial)
    os.replace(partial, path)
