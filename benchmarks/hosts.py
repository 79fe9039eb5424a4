"""Two hosts on one machine: network namespaces joined by a virtual cable. Needs root and iproute2."""

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
    """Where a process runs. The default: here."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    enter: tuple[str, ...] = ()
    """What a command begins with to run there."""

    def listens(self, port: int) -> bool:
        """Is a connect to this port accepted, from this host?"""
        command = [*self.enter, "bash", "-c", f"exec 3<>/dev/tcp/{self.address}/{port}"]
        return subprocess.run(command, capture_output=True, timeout=_SECONDS).returncode == 0


HERE = Host()


class NoHosts(Exception):
    """Namespaces can't be made here."""


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Raises `NoHosts` with the reason."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoHosts("two hosts need root and iproute2's ip")
    names = [f"tfx{os.getpid()}{x}" for x in "ab"]
    hosts = [Host(f"10.77.1.{i + 1}", f"v{name}"[:15], ("ip", "netns", "exec", name)) for i, name in enumerate(names)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", names[0], "link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface,
            "netns", names[1])  # fmt: skip
        for name, host in zip(names, hosts, strict=True):
            _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", host.interface, "up")
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=_SECONDS)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise NoHosts(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
