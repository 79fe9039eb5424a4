"""A lighthouse with its page in this process, and a client that uses real connections."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.util import clock, scaled
from torchft_x.core.job.outcome import JobConfig, JobOutcome
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.net import Address, parse_address
from torchft_x.rpc.lighthouse.page import start
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.transport import loop

TOKEN = "the-token-of-this-run"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A running lighthouse and its page, with requests to them."""

    def __init__(self, shell: LighthouseShell, address: str, page: start.Page) -> None:
        self.shell, self.address, self.page = shell, address, page

    @property
    def page_address(self) -> Address:
        return parse_address(self.page.url)

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        at = self.page_address
        connection = http.client.HTTPConnection(at.host, at.port, timeout=scaled(10))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(method, path, data, named)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def order(self, kind: str, group: Any, token: str | None = TOKEN) -> Answer:
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.ask(f"/{kind}", "POST", {"group": group}, **given)

    def run_dir(self, folder: Path) -> str:
        """Make this the run directory of a job that has this lighthouse."""
        (folder / "events").mkdir()
        (folder / "lighthouse").write_text(self.address)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        return str(folder)

    def status(self) -> dict[str, Any]:
        """Return the lighthouse's status, read on its own thread."""

        async def ask() -> dict[str, Any]:
            return self.shell.status()

        return loop.call(ask(), scaled(10))

    def groups(self) -> dict[str, dict[str, Any]]:
        return {g["group"]: g for g in self.ask("/status.json").json["groups"]}


@contextlib.contextmanager
def served(
    *,
    token: str | None = TOKEN,
    bind: str | None = "127.0.0.1:0",
    groups: tuple[str, ...] = (),
    join_timeout: float = 5.0,
    **job: float,
) -> Iterator[Served]:
    roster = JobOutcome(JobConfig(groups=groups, **job)) if groups else None  # type: ignore[arg-type]
    shell = LighthouseShell(LighthouseConfig(join_timeout=clock(join_timeout)), token=token, roster=roster)
    port = loop.call(shell.start(Address("127.0.0.1", 0)), scaled(10), "starting")
    address = f"http://127.0.0.1:{port}"
    page = loop.call(start.start(shell, bind, port, address), scaled(10), "starting the page")
    try:
        yield Served(shell, address, page)
    finally:
        loop.call(page.close(), scaled(10), "closing the page")
        loop.call(shell.stop(), scaled(10), "stopping")
