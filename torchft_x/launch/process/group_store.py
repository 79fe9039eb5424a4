"""The store behind MASTER_ADDR and MASTER_PORT, for a script's own `init_process_group`. It asks for no secret.

The supervisor keeps its listener open for as long as an attempt runs; for a group on one node that is a loopback
address. The store itself is torch's, in a process of its own. With one rank that process starts at the first
connection, which most such groups never make; with several ranks it starts at once. The warm parent forks it; without
one it imports torch first.

    python group_store.py DESCRIPTOR HOST PORT      the process of the store
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from torchft_x.net import Address

SHIM = str(Path(__file__).with_name("shim.py"))
_BACKLOG = 2048  # connections that may wait while the process starts


def loopback() -> socket.socket:
    """Return a listening socket that only this host can reach."""
    try:
        return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    except OSError:  # an IPv6-only host
        return socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=_BACKLOG)


class GroupStore:
    """Store of one attempt: owns the listening socket and starts the store's process.

    Used on the supervisor's main thread only: the death signal of the process is tied to the thread that starts it.
    """

    def __init__(
        self, listener: socket.socket, environ: Mapping[str, str], log: Path, fork: Callable[[GroupStore], int | None]
    ) -> None:
        self.listener = listener  # owned by this object
        self.log = log  # file for the process's output
        self._environ = environ  # environment of the group's workers
        self._fork = fork  # forks a warm process that serves the store, and returns its pid; None if it can't
        self.pid: int | None = None  # pid of the store's process; None until it is started

    @property
    def address(self) -> Address:
        host, port = self.listener.getsockname()[:2]
        return Address(host, port)

    @property
    def called(self) -> Address:
        """Loopback address by which torch's server connects to itself."""
        return Address("::1" if self.listener.family == socket.AF_INET6 else "127.0.0.1", self.address.port)

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when a connection waits for the process to be started."""
        return [self.listener.fileno()] if self.pid is None and self.listener.fileno() >= 0 else []

    def tend(self) -> bool:
        """Start the process if a connection waits for it, and return whether it was started now."""
        called = self.pid is None and bool(select.select(self.fds(), [], [], 0.0)[0])
        if called:
            self.start()
        return called

    def start(self) -> None:
        """Start the process unless it is started."""
        self.pid = self.pid or self._fork(self) or self._start_cold()

    def _start_cold(self) -> int:
        served = [str(Path(__file__)), str(self.listener.fileno()), self.called.host, str(self.called.port)]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", SHIM, "server", str(os.getpid()), sys.executable, *served],
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.listener.fileno(),),
            )
        process.returncode = 0  # collected by the supervisor (process_tree.reap), not by Popen
        return process.pid

    def close(self) -> None:
        self.listener.close()


def serve(descriptor: int, host: str, port: int) -> NoReturn:
    """Serve the store in this process until the supervisor kills it (SIGKILL) at the end of the attempt."""
    from torch.distributed import TCPStore

    _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def main() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # our own folder, whose modules would shadow others of the same name
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
