"""A network of its own for each machine of a job: namespaces joined by a switch, and links that can be cut.

One namespace holds the switch (a bridge), so nothing of this shows in the host's own network, and whoever deletes the
namespaces has deleted everything. Needs root and iproute2.

Between two machines a link is cut by making each take a stranger for the other (a permanent neighbour entry with an
address that nobody has): packets vanish, both ways, without an error on either side, and connections go on when the
link is back. A machine is cut from everybody by taking its port at the switch down.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter

_NOBODY = "02:00:00:00:00:00"
_OURS = re.compile(r"tfx(\d+)-\S+")


def missing() -> str:
    """What keeps us from making networks, a sentence; '' if nothing does."""
    if shutil.which("ip") is None:
        return "Networks can't be made: there is no `ip` command; install iproute2."
    if os.geteuid() != 0:
        return "Networks can't be made: their namespaces need root, and these tests run as another user."
    probe = f"tfx{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if made.returncode != 0:
        return f"Networks can't be made: root may not make namespaces here ({made.stderr.strip()})."
    ip("netns", "del", probe)
    return ""


def sweep() -> None:
    """Remove what dead test runs have left: their namespaces, and the processes in them."""
    for name in _namespaces():
        owner = _OURS.fullmatch(name)
        if owner and not os.path.exists(f"/proc/{owner[1]}"):
            remove(name)


class Networks:
    """Use as a context manager: nothing of it is left behind. Hosts are added by name and have fixed addresses."""

    def __init__(self) -> None:
        self._prefix = f"tfx{os.getpid()}-"
        self._numbers: dict[str, int] = {}  # host -> last part of its address
        self._cut: Counter[tuple[str, str]] = Counter()  # pairs in order -> how often they are cut at present
        self._switch = f"{self._prefix}switch"

    def __enter__(self) -> Networks:
        sweep()
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for host in self._numbers:
            remove(self._name(host))
        remove(self._switch)

    def address(self, host: str) -> str:
        return f"10.77.0.{self._numbers[host]}"

    def command(self, host: str) -> list[str]:
        """Put before a command, it makes that run on this host."""
        return ["ip", "netns", "exec", self._name(host)]

    def add(self, host: str) -> None:
        """A new machine at the switch; the same address again if it had one."""
        number = self._numbers.setdefault(host, len(self._numbers) + 1)
        name, mac = self._name(host), f"02:00:00:00:01:{number:02x}"
        ip("netns", "add", name)
        port = ("link", "add", self._port(host), "type", "veth", "peer", "name", "eth0", "address", mac, "netns", name)
        ip("-n", self._switch, *port)
        ip("-n", self._switch, "link", "set", self._port(host), "master", "br0", "up")
        ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")

    def remove(self, host: str) -> None:
        """The machine loses its power: first nothing leaves it any more, then it is gone with all its processes."""
        ip("-n", self._switch, "link", "del", self._port(host))
        remove(self._name(host))

    def cut(self, a: str, b: str) -> None:
        self._cut[a, b] += 1
        if self._cut[a, b] == 1:
            for here, there in ((a, b), (b, a)):
                self._neighbour(here, "replace", self.address(there), "lladdr", _NOBODY, "nud", "permanent")

    def mend(self, a: str, b: str) -> None:
        self._cut[a, b] -= 1
        if self._cut[a, b] == 0:
            for here, there in ((a, b), (b, a)):
                self._neighbour(here, "del", self.address(there))

    def unplug(self, host: str) -> None:
        ip("-n", self._switch, "link", "set", self._port(host), "down")

    def plug(self, host: str) -> None:
        ip("-n", self._switch, "link", "set", self._port(host), "up")

    def _neighbour(self, host: str, verb: str, address: str, *more: str) -> None:
        if self._name(host) in _namespaces():  # it may have lost its power meanwhile
            ip("-n", self._name(host), "neigh", verb, address, "dev", "eth0", *more)

    def _name(self, host: str) -> str:
        return f"{self._prefix}{host}"

    def _port(self, host: str) -> str:
        return f"port{self._numbers[host]}"


def _namespaces() -> list[str]:
    """Where `ip` keeps them: its own list complains while somebody else deletes one."""
    try:
        return os.listdir("/run/netns")
    except FileNotFoundError:
        return []


def remove(name: str) -> None:
    """The namespace with everything that runs in it."""
    if name not in _namespaces():
        return
    out = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in out.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    ip("netns", "del", name)


def ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(args)}: {done.stderr.strip()}")
