"""Start of the page's server. If its port is taken, a sentence says so and the lighthouse serves without the page."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torchft_x.errors import AddressError, TorchftXError
from torchft_x.net import Address, parse_address
from torchft_x.rpc.lighthouse.page.orders import OrderDesk
from torchft_x.rpc.lighthouse.page.recorder import Recorder

if TYPE_CHECKING:
    from torchft_x.rpc.lighthouse.page.http import HttpServer

OFF = "off"
_LOOPBACK = "127.0.0.1"
_BESIDE = 10
"""Ports between the lighthouse and the page by default, so that a restarted lighthouse has its page at the same
port."""
_WHAT = "--http_bind"
_WITHOUT = f"The lighthouse serves without it; {_WHAT} names another address, or {OFF}."


class Shell(Protocol):
    """The lighthouse behind the page (`rpc.lighthouse.server.LighthouseShell`)."""

    recorder: Recorder
    orders: OrderDesk
    token: str | None

    def serves(self) -> bool: ...


@dataclass(frozen=True)
class Page:
    url: str  # '': there is no page
    trouble: str = ""  # a sentence that says why there is no page
    server: HttpServer | None = None

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()


def checked(given: str | None) -> str | None:
    """Check the value of `--http_bind` and return it unchanged. Raises `AddressError`."""
    if given is not None and given != OFF:
        parse_address(given, what=_WHAT)
    return given


async def start(shell: Shell, given: str | None, port: int, address: str) -> Page:
    """Start the page's server, on the loop. `given` is the value of `--http_bind`.

    The lighthouse listens on `port`, and `address` is the URL by which others reach it."""
    shell.recorder.address = address
    shell.recorder.orders = shell.token is not None
    if given == OFF:
        return Page("")
    try:
        from torchft_x.rpc.lighthouse.page.http import HttpServer
        from torchft_x.rpc.lighthouse.page.routes import Routes
    except ImportError as e:  # the packages were installed without their dependencies
        return Page("", f"The page needs a package that is not installed ({e}): pip install h11. {_WITHOUT}")
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], parse_address(address).host}
    if given is not None:
        names.add(parse_address(given, what=_WHAT).host)
    routes = Routes(shell.recorder, shell.orders, token=shell.token, names=names, serves=lambda: shell.serves())
    server = HttpServer(routes.answer)
    try:
        at = _listen(server, given, port)
    except TorchftXError as e:
        return Page("", f"{e} {_WITHOUT}")
    host = parse_address(address).host if at.host in ("::", "0.0.0.0") else at.host
    shell.recorder.page = f"{Address(host, at.port).url}/"
    return Page(shell.recorder.page, server=server)


def _listen(server: HttpServer, given: str | None, port: int) -> Address:
    if given is not None:
        return server.listen(parse_address(given, what=_WHAT))
    try:
        return server.listen(Address(_LOOPBACK, port + _BESIDE if port + _BESIDE < 65536 else 0))
    except AddressError:  # this port is only our default, so any other will do
        return server.listen(Address(_LOOPBACK, 0))
