"""Several lighthouses in this process, for the tests of this room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.util import scaled
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.net import Address
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.transport import grpc_options, loop


class House:
    """A lighthouse that can go, and come back at its address without a memory."""

    def __init__(self, place: int | None, **config: Any) -> None:
        self.place = place
        self.config = {"min_replicas": 1, "join_timeout": scaled(5.0), "boot_id": grpc_options.boot_id(), **config}
        self._bind = Address("127.0.0.1", 0)
        self._shell: LighthouseShell | None = None

    def start(self, *, new_job: bool = False, token: str | None = None) -> None:
        config = LighthouseConfig(place=self.place, new_job=new_job, restarted=not new_job, **self.config)
        self._shell = LighthouseShell(config, token=token)
        self._bind = self._bind._replace(port=loop.call(self._shell.start(self._bind), scaled(5.0)))

    def stop(self) -> None:
        if self._shell is not None:
            shell, self._shell = self._shell, None
            loop.call(shell.stop(), scaled(5.0))

    @property
    def address(self) -> str:
        return self._bind.url

    def status(self) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            assert self._shell is not None
            return self._shell.status()

        return loop.call(ask(), scaled(5.0))

    def here(self) -> list[str]:
        """Replica ids with a session."""
        return [m["replica_id"] for m in self.status()["members"] if m["kind"] == "session"]

    def proofs(self) -> dict[str, int]:
        """Replica ids whose last words it knows, and what they had received."""

        async def ask() -> dict[str, int]:
            assert self._shell is not None
            coalition = self._shell._machine._tenure.coalition
            return dict(coalition.ended) if coalition is not None else {}

        return loop.call(ask(), scaled(5.0))


@contextlib.contextmanager
def two_houses() -> Iterator[tuple[House, House]]:
    """Of a new job; both serve."""
    houses = House(0), House(1)
    houses[0].start(new_job=True)
    houses[1].start()
    try:
        yield houses
    finally:
        for house in houses:
            house.stop()
