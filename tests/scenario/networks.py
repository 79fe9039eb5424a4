"""A network of its own for each machine of a job: namespaces joined by a switch, and links that can be cut.

One namespace holds the switch (a bridge), so that the host's own network stays unchanged and deleting the namespaces
removes everything. Needs root and iproute2.

A link between two machines is cut by a permanent neighbour entry on each side, with an address that no machine has.
Packets then vanish in both directions, without an error on either side, and connections continue when the link is back.
A machine is cut from all others by taking its port at the switch down.
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
    """Return a sentence about why networks can't be made, or '' if they can."""
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
    """Remove the remains of dead test runs: their namespaces, and the processes in them."""
    for name in _namespaces():
        owner = _OURS.fullmatch(name)
        if owner and not os.path.exists(f"/proc/{owner[1]}"):
            remove(name)


class Networks:
    """The switch and its machines, as a context manager that removes them at its end.

    Hosts are added by name and have fixed addresses, one of each of the `families`: "4", "6" or "46".
    """

    def __init__(self, families: str = "4") -> None:
        self._families = families
        self._prefix = f"tfx{os.getpid()}-"
        self._numbers: dict[str, int] = {}  # host -> last byte of its address
        self._cut: Counter[tuple[str, str]] = Counter()  # ordered pair of hosts -> number of cuts in force
        self._switch = f"{self._prefix}switch"

    def __enter__(self) -> Networks:
        sweep()
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for host in self._numbers:
            remove(self.name(host))
        remove(self._switch)

    def address(self, host: str, family: str = "4") -> str:
        return f"10.77.0.{self._numbers[host]}" if family == "4" else f"fd78::{self._numbers[host]}"

    def command(self, host: str) -> list[str]:
        """Return a prefix that runs a command on this host."""
        return ["ip", "netns", "exec", self.name(host)]

    def add(self, host: str) -> None:
        """Connect a new machine to the switch. A host that existed before has its old address."""
        number = self._numbers.setdefault(host, len(self._numbers) + 1)
        name, mac = self.name(host), f"02:00:00:00:01:{number:02x}"
        ip("netns", "add", name)
        port = ("link", "add", self._port(host), "type", "veth", "peer", "name", "eth0", "address", mac, "netns", name)
        ip("-n", self._switch, *port)
        ip("-n", self._switch, "link", "set", self._port(host), "master", "br0", "up")
        for family in self._families:
            width, more = ("24", []) if family == "4" else ("64", ["nodad"])
            ip("-n", name, "addr", "add", f"{self.address(host, family)}/{width}", "dev", "eth0", *more)
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")

    def remove(self, host: str) -> None:
        """Cut a machine's power: no packet leaves it any more, then its processes are killed."""
        ip("-n", self._switch, "link", "del", self._port(host))
        remove(self.name(host))

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
        if self.name(host) in _namespaces():  # the machine may be off
            ip("-n", self.name(host), "neigh", verb, address, "dev", "eth0", *more)

    def name(self, host: str) -> str:
        return f"{self._prefix}{host}"

    def _port(self, host: str) -> str:
        return f"port{self._numbers[host]}"


def _namespaces() -> list[str]:
    """Return the names of all network namespaces.

    The folder is read directly, because `ip netns list` fails while another process deletes a namespace.
    """
    try:
        return os.listdir("/run/netns")
    except FileNotFoundError:
        return []


def remove(name: str) -> None:
    """Remove the namespace and kill all processes in it."""
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
