"""Start children of this process in milliseconds: `multiprocessing`'s fork server, with our modules and torch imported.

A trainer has threads and can't be forked safely, and starting Python with torch takes seconds. The server has a single
Python thread. It ends with its trainer, and its children end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, reduction, resource_tracker

from torchft_x.comm.subprocess import child_main
from torchft_x.errors import ConfigError


class _ForkServer(forkserver.ForkServer):
    """Fork server for process groups only, so that the user's own has the modules and signals that the user wants."""

    _forkserver_pid: int | None
    _forkserver_alive_fd: int | None
    _lock: threading.Lock
    _stop_unlocked: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload([child_main.__name__])  # by default it is the user's script

    def ensure_running(self) -> None:
        """Start the server in the background, if there is none. Raises `ConfigError` if the system can't have it."""
        if sys.platform != "linux":
            raise ConfigError(
                f"Process groups in a child process need Linux (this is {sys.platform}): use the one without 'Baby'."
            )
        method, pid = multiprocessing.get_start_method(allow_none=True), self._forkserver_pid
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            resource_tracker.ensure_running()  # which unblocks SIGINT
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for the trainer to handle
            super().ensure_running()
        except OSError as e:
            raise ConfigError(f"The process group's helper process can't be started: {e}.") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if method is None and self._forkserver_pid != pid:  # the start has set one, which then can't be changed
                multiprocessing.set_start_method(None, force=True)

    def stop(self, pid: int | None) -> None:
        """Kill the server with this pid, and wait for its end."""
        with self._lock, contextlib.suppress(FileNotFoundError):  # of its socket
            if pid is not None and pid == self._forkserver_pid:
                os.kill(pid, signal.SIGKILL)
                self._stop_unlocked()


_server = _ForkServer()


def warm_up() -> None:
    """Start the server, so that the first child needn't wait for its imports. Raises `ConfigError` if there can't be one."""
    _server.ensure_running()


def start(program: child_main.Child, fds: Sequence[int]) -> tuple[int, int]:
    """Fork a child that runs `program` with these descriptors. Blocks until the server has imported its modules.

    Return the child's pid, and a descriptor from which `forkserver.read_signed` reads how the child ended. Raises
    `OSError` or `EOFError`.
    """
    message = io.BytesIO()
    reduction.dump({"sys_path": sys.path}, message)  # without the path of the user's script, which it would import
    reduction.dump(program, message)
    pid = _server._forkserver_pid
    try:
        return _fork(message, fds)
    except (ConnectionError, EOFError, FileNotFoundError):  # the server was killed, or its socket removed
        _server.stop(pid)
        return _fork(message, fds)


def _fork(message: io.BytesIO, fds: Sequence[int]) -> tuple[int, int]:
    status, data = _server.connect_to_new_process(fds)
    try:
        with open(data, "wb") as f:
            f.write(message.getbuffer())
        return forkserver.read_signed(status), status
    except BaseException:
        os.close(status)
        raise


def _after_fork_in_child() -> None:
    """Release the parent's server, which must not outlive the parent."""
    global _server
    if _server._forkserver_alive_fd is not None:
        os.close(_server._forkserver_alive_fd)
    _server = _ForkServer()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(lambda: _server.stop(_server._forkserver_pid))
