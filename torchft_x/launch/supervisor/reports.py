"""What a supervisor tells the lighthouse, and the client that carries it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torchft_x.launch.supervisor.locate import Found


class Reports(Protocol):
    """What the supervisor tells the lighthouse; `torchft_x.rpc.supervisor.client.SupervisorClient` has these.

    No call waits for the network but `close`: up to `flush` seconds, until the reports have arrived.
    """

    def started(self, attempt: int, life: str) -> None: ...
    def exited(self, attempt: int, life: str, code: int, reason: str) -> None: ...
    def halted(self, life: str, who: str, seconds: float) -> None: ...
    def rests(self, rests: bool) -> None: ...
    def done(self, code: int, sentence: str) -> None: ...
    def on_stop(self, callback: Callable[[int, str], None]) -> None: ...
    def on_order(self, callback: Callable[[str, str, str], None]) -> None: ...
    def on_number(self, callback: Callable[[int], None]) -> None: ...
    def away(self) -> float: ...
    def close(self, flush: float) -> None: ...


@runtime_checkable
class NodeReports(Reports, Protocol):
    """Of one node of a group over several; the first two instead of started and exited."""

    def is_up(self) -> bool: ...
    def ready(self, attempt: int, meeting: str) -> None: ...
    def ended(self, attempt: int, life: str, code: int, reason: str) -> None: ...
    def on_life(self, begin: Callable[[int, str, str], None], over: Callable[[str, int, str], None]) -> None: ...


def connector(group: str, node: int = 0, nodes: int = 1, *, sidecar: str = "") -> Callable[[Found], Reports]:
    """Makes the real client, for a group (or one node of it) or for a sidecar. grpc is imported when the lighthouse is found, not before."""

    def connect(found: Found) -> Reports:
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
