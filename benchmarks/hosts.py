"""Simulated hosts on one machine: network namespaces joined by virtual cables. They need root and iproute2."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_SECONDS = 20.0


@dataclass(frozen=True)
class Host:
    """Network namespace in which a process runs. The default is this process's own."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    enter: tuple[str, ...] = ()
    """First words of a command that runs in the namespace."""

    def listens(self, port: int) -> bool:
        """Return whether a connect from this host to its own port is accepted."""
        command = [*self.enter, "bash", "-c", f"exec 3<>/dev/tcp/{self.address}/{port}"]
        return subprocess.run(command, capture_output=True, timeout=_SECONDS).returncode == 0


HERE = Host()


class NoHosts(Exception):
    """Raised where namespaces can't be made, with the reason."""


@contextlib.contextmanager
def star(sources: int, rate: str = "") -> Iterator[tuple[Host, list[Host]]]:
    """Make a host in the middle, and `sources` more with a cable to it each, and remove them at the end.

    The sources send at most `rate` (in tc's notation: "1gbit"), if it is given. Raise `NoHosts` with the reason if
    that fails.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise NoHosts("hosts need root, and iproute2's ip and tc")
    middle, *names = [f"tfx{os.getpid()}{x}" for x in "mabcdefgh"[: sources + 1]]
    found: list[Host] = []
    try:
        for name in (middle, *names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for i, name in enumerate(names):
            here, there = f"m{i}", f"v{name}"[:15]
            _ip("-n", middle, "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            for at, cable, last in ((middle, here, 1), (name, there, 2)):
                _ip("-n", at, "addr", "add", f"10.77.{i + 2}.{last}/24", "dev", cable)
                _ip("-n", at, "link", "set", cable, "up")
            if rate:
                shape = ["dev", there, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
                _run("ip", "netns", "exec", name, "tc", "qdisc", "add", *shape)
            found.append(Host(f"10.77.{i + 2}.2", there, ("ip", "netns", "exec", name)))
        yield Host("10.77.2.1", "m0", ("ip", "netns", "exec", middle)), found
    finally:
        for name in (middle, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=_SECONDS)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise NoHosts(f"{' '.join(command)}: {done.stderr.strip()}")
