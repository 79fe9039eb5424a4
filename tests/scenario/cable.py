"""Two machines and a cable: network namespaces "left" and "right" joined by a veth, without names, routes or a way out.

Both have an IPv4 and an IPv6 address, or one of them. A hosts file of each machine maps the machine's own name (`ip
netns exec` puts it over /etc/hosts). There is no name server.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from tests.scenario import networks

SIDES = {"left": 1, "right": 2}
_FILES = Path("/etc/netns")


class Pair:
    """The two machines, as a context manager that removes them at its end. `families`: "4", "6" or "46"."""

    def __init__(self, families: str = "46") -> None:
        self.families = families
        self._prefix = f"tfx{os.getpid()}-"

    def __enter__(self) -> Pair:
        networks.sweep()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        for side in SIDES:
            networks.ip("netns", "add", self._name(side))
        left, right = map(self._name, SIDES)
        networks.ip("-n", left, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", right)
        networks.ip("-n", left, "link", "add", "six0", "type", "bridge")  # further interfaces of left
        networks.ip("-n", left, "link", "add", "bare0", "type", "bridge")
        networks.ip("-n", left, "link", "set", "six0", "up")
        networks.ip("-n", left, "addr", "add", "fd77:1::1/64", "dev", "six0", "nodad")
        for side in SIDES:
            for family in self.families:
                width, more = (24, []) if family == "4" else (64, ["nodad"])
                where = f"{self.address(side, family)}/{width}"
                networks.ip("-n", self._name(side), "addr", "add", where, "dev", "eth0", *more)
            networks.ip("-n", self._name(side), "link", "set", "eth0", "up")
            networks.ip("-n", self._name(side), "link", "set", "lo", "up")
        self.own_name(None)

    def __exit__(self, *exc: object) -> None:
        for side in SIDES:
            networks.remove(self._name(side))
            shutil.rmtree(_FILES / self._name(side), ignore_errors=True)

    def address(self, side: str, family: str) -> str:
        return f"10.78.0.{SIDES[side]}" if family == "4" else f"fd78::{SIDES[side]}"

    def url_host(self, side: str, family: str) -> str:
        return self.address(side, family) if family == "4" else f"[{self.address(side, family)}]"

    def command(self, side: str) -> list[str]:
        """Return a prefix that runs a command on this machine."""
        return ["ip", "netns", "exec", self._name(side)]

    def own_name(self, leads_to: str | None) -> None:
        """Map the machines' own name to an address on both machines, or to nothing."""
        for side in SIDES:
            folder = _FILES / self._name(side)
            folder.mkdir(parents=True, exist_ok=True)
            own = "" if leads_to is None else f"{leads_to} {socket.gethostname()}\n"
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{own}")
            (folder / "resolv.conf").write_text("")  # then the C library asks 127.0.0.1, where no server listens
            (folder / "nsswitch.conf").write_text("hosts: files dns\n")

    def _name(self, side: str) -> str:
        return f"{self._prefix}{side}"
