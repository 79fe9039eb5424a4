"""Reports of a supervisor to the lighthouse, and the function that makes the client which sends them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from torchft_x.core.types import State
from torchft_x.launch.supervisor.locate import FoundLighthouse


class Reports(Protocol):
    """Reports of a supervisor to the lighthouse, implemented by `torchft_x.rpc.supervisor.client.SupervisorClient`.

    `start` connects; the callbacks (`on_...`) must be registered before. Only `close` waits for the network: up to `flush`
    seconds, until the reports have arrived. One node of a group over several sends `ready` and `ended` instead of `started`
    and `exited`.
    """

    def start(self) -> None: ...
    def started(self, attempt: int, attempt_token: str) -> None: ...
    def exited(self, attempt: int, attempt_token: str, code: int, reason: str) -> None: ...
    def halted(self, attempt_token: str, who: str, seconds: float) -> None: ...
    def rests(self, rests: bool) -> None: ...
    def held(self, state: State) -> None: ...
    def done(self, code: int, sentence: str) -> None: ...
    def on_stop(self, callback: Callable[[int, str], None]) -> None: ...
    def on_order(self, callback: Callable[[str, str, str], None]) -> None: ...
    def on_number(self, callback: Callable[[int], None]) -> None: ...
    def away(self) -> float: ...
    def close(self, flush: float) -> None: ...
    def is_up(self) -> bool: ...
    def ready(self, attempt: int, meeting: str) -> None: ...
    def ended(self, attempt: int, attempt_token: str, code: int, reason: str) -> None: ...
    def on_attempt(self, begin: Callable[[int, str, str], None], over: Callable[[str, int, str], None]) -> None: ...


def connector(group: str, node: int = 0, nodes: int = 1, *, sidecar: str = "") -> Callable[[FoundLighthouse], Reports]:
    """Return a function that makes the client for a group, one node of it, or a sidecar.

    The function imports grpc, so that grpc is not imported before the lighthouse is found.
    """

    def connect(found: FoundLighthouse) -> Reports:
        from torchft_x.rpc.supervisor.client import SupervisorClient
        from torchft_x.rpc.transport import grpc_options

        return SupervisorClient(
            lighthouse=found.url,
            group=group,
            host=socket.gethostname(),
            boot_id=grpc_options.boot_id(),
            token=found.token,
            node=node,
            nodes=nodes,
            sidecar=sidecar,
            lighthouse_file=found.address_file,
        )

    return connect
