"""Waits with deadlines, which are stretched on slow machines. Tests use no fixed sleeps."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchft_x import env

T = TypeVar("T")


def scaled(seconds: float) -> float:
    """Return a deadline stretched for this machine, three times as far as `clock`; waiting costs nothing."""
    return 3 * clock(seconds)


def clock(seconds: float) -> float:
    """Return a time that a test passes to torchft_x (a heartbeat timeout, a lease), stretched as its own times are."""
    return seconds * env.time_scale()


def wait_for(condition: Callable[[], T], seconds: float = 10.0, what: str = "the condition") -> T:
    """Poll until `condition()` is truthy and return its value; fail with `what` at the deadline."""
    began = time.monotonic()
    deadline = began + scaled(seconds)
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"gave up after {scaled(seconds):.1f} s waiting for {what}")
        time.sleep(
            0.005 if now - began < 1.0 else 0.02
        )  # conditions that read all processes or a long log are expensive


@contextlib.contextmanager
def fork_server(*preload: str) -> Iterator[Any]:
    """Yield a multiprocessing context whose server has imported these modules and ends with the block.

    The server must end, because the launcher's tests, which run later in the same process, reap every child.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    try:
        yield context
    finally:
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def free_port() -> int:
    """Return a port that nobody uses, below those that the kernel gives to everybody who asks for any."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("", port))
            return port


def write_secret(path: Path, text: str = "secret\n") -> None:
    """Write a file that only its owner may read, as a token's must be."""
    path.touch(0o600)
    path.write_text(text)


class Listener(NamedTuple):
    """A listening TCP socket."""

    pid: int
    host: str
    port: int


def listeners(pids: Iterable[int]) -> list[Listener]:
    """Return the TCP sockets on which these processes listen, as `ss -ltnp` lists them; each once per process."""
    at = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            host, port = words[1].split(":")
            if words[3] == "0A":  # LISTEN; the address is made of 32-bit words in this machine's order
                raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
                at[words[9]] = (socket.inet_ntop(family, raw), int(port, 16))
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inode = os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]")
                    if inode in at:
                        found.add(Listener(pid, *at[inode]))
    return sorted(found)
