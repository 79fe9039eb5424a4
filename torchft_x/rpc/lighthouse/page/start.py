"""Where the page is, and what becomes of it: a port that is taken is a sentence, and not the lighthouse's end."""

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
"""By default the page is so many ports above the lighthouse, so that a lighthouse that is started again has it there, too."""
_WHAT = "--http_bind"
_WITHOUT = f"The lighthouse serves without it; {_WHAT} names another place, or {OFF}."


class Shell(Protocol):
    """What is shown; `rpc.lighthouse.server.LighthouseShell` has these."""

    recorder: Recorder
    desk: OrderDesk
    token: str | None

    def serves(self) -> bool: ...


@dataclass(frozen=True)
class Page:
    url: str  # '': there is none
    trouble: str = ""  # why not, a sentence
    server: HttpServer | None = None

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()


def checked(given: str | None) -> str | None:
    """As given. Raises `ConfigError`."""
    if given is not None and given != OFF:
        parse_address(given, what=_WHAT)
    return given


async def start(shell: Shell, given: str | None, port: int, address: str) -> Page:
    """On the loop. `given`: `--http_bind`; `port`, `address`: where the lighthouse serves, and what others call it."""
    shell.recorder.address = address
    shell.recorder.orders = shell.token is not None
    if given == OFF:
        return Page("")
    try:
        from torchft_x.rpc.lighthouse.page.http import HttpServer
        from torchft_x.rpc.lighthouse.page.routes import Routes
    except ImportError as e:  # an image whose packages were installed without asking what they need
        return Page("", f"The page needs a package that is not installed ({e}): pip install h11. {_WITHOUT}")
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], parse_address(address).host}
    if given is not None:
        names.add(parse_address(given, what=_WHAT).host)
    routes = Routes(shell.recorder, shell.desk, token=shell.token, names=names, serves=lambda: shell.serves())
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
    except AddressError:  # nobody asked for that one
        return server.listen(Address(_LOOPBACK, 0))
