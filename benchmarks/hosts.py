"""Hosts on one machine: network namespaces joined by virtual cables. Needs root and iproute2."""

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


@contextlib.contextmanager
def star(sources: int, rate: str) -> Iterator[tuple[Host, list[Host]]]:
    """A host in the middle, and some with a cable of their own to it, over which they send no more than `rate` (as tc says
    it: "1gbit"). Raises `NoHosts` with the reason."""
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
