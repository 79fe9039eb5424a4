"""Two machines, "left" and "right", without names, routes or a way out.

Both have an IPv4 and an IPv6 address, or one of them. A hosts file of each machine maps the machine's own name (`ip
netns exec` puts it over /etc/hosts). There is no name server.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from tests.scenario.networks import Networks, ip

SIDES = ("left", "right")
_FILES = Path("/etc/netns")


class Pair(Networks):
    """The two machines, as a context manager that removes them at its end. `families`: "4", "6" or "46"."""

    def __init__(self, families: str = "46") -> None:
        super().__init__(families)

    def __enter__(self) -> Pair:
        super().__enter__()
        try:
            for side in SIDES:
                self.add(side)
            left = self.name("left")
            ip("-n", left, "link", "add", "six0", "type", "bridge")  # further interfaces of left
            ip("-n", left, "link", "add", "bare0", "type", "bridge")
            ip("-n", left, "link", "set", "six0", "up")
            ip("-n", left, "addr", "add", "fd77:1::1/64", "dev", "six0", "nodad")
            self.own_name(None)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for side in SIDES:
            shutil.rmtree(_FILES / self.name(side), ignore_errors=True)

    def url_host(self, side: str, family: str) -> str:
        return self.address(side, family) if family == "4" else f"[{self.address(side, family)}]"

    def own_name(self, leads_to: str | None) -> None:
        """Map the machines' own name to an address on both machines, or to nothing."""
        for side in SIDES:
            folder = _FILES / self.name(side)
            folder.mkdir(parents=True, exist_ok=True)
            own = "" if leads_to is None else f"{leads_to} {socket.gethostname()}\n"
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{own}")
            (folder / "resolv.conf").write_text("")  # then the C library asks 127.0.0.1, where no server listens
            (folder / "nsswitch.conf").write_text("hosts: files dns\n")
