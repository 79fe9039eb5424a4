"""The store behind MASTER_ADDR and MASTER_PORT, where a script's own `init_process_group` meets. No secret is asked there.

A listener that the supervisor keeps for as long as a life runs: of a group on one node on the loopback. The store itself
is torch's, in a process of its own, which is started when the first caller comes: most groups of one rank never need it.
Where several ranks will call it starts at once. The warm parent forks it; without one it imports torch first.

    python group_store.py DESCRIPTOR HOST PORT      that process
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
_BACKLOG = 2048  # callers that wait while the process starts


def loopback() -> socket.socket:
    """A listener that only this host reaches."""
    try:
        return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    except OSError:  # a host that knows IPv6 only
        return socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=_BACKLOG)


class GroupStore:
    """Used by the supervisor's main thread, to which the death signal is tied."""

    def __init__(
        self, listener: socket.socket, environ: Mapping[str, str], log: Path, fork: Callable[[GroupStore], int | None]
    ) -> None:
        self.listener = listener  # ours
        self.log = log  # what the process says, for people
        self._environ = environ  # of the group's workers
        self._fork = fork  # the pid of a warm process that serves it; None: there is none
        self.pid: int | None = None  # once it is started

    @property
    def address(self) -> Address:
        host, port = self.listener.getsockname()[:2]
        return Address(host, port)

    @property
    def called(self) -> Address:
        """Where torch's server calls itself."""
        return Address("::1" if self.listener.family == socket.AF_INET6 else "127.0.0.1", self.address.port)

    def fds(self) -> list[int]:
        """Readable: there is a caller."""
        return [self.listener.fileno()] if self.pid is None and self.listener.fileno() >= 0 else []

    def tend(self) -> bool:
        """Start the process if somebody calls; whether it was started now."""
        called = self.pid is None and bool(select.select(self.fds(), [], [], 0.0)[0])
        if called:
            self.start()
        return called

    def start(self) -> None:
        """Unless it is."""
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
        process.returncode = 0  # collected by the supervisor (tree.reap), not by Popen
        return process.pid

    def close(self) -> None:
        self.listener.close()


def serve(descriptor: int, host: str, port: int) -> NoReturn:
    """In the process with the store: until the end of the life, which is a SIGKILL."""
    from torch.distributed import TCPStore

    _store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def main() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # our own folder: its `tree` and `parse` are not what others mean
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
