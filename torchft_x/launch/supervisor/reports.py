"""Makes the client by which a supervisor reports to the lighthouse, without an early import of grpc."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torchft_x import net
from torchft_x.launch.supervisor.locate import FoundLighthouse

if TYPE_CHECKING:
    from torchft_x.rpc.supervisor_client import SupervisorClient


Reports: TypeAlias = "SupervisorClient"
"""Client that reports to the lighthouse."""


def connector(group: str, node: int = 0, nodes: int = 1, *, sidecar: str = "") -> Callable[[FoundLighthouse], Reports]:
    """Return a function that imports grpc and makes the client for a group, one node of it, or a sidecar."""

    def connect(found: FoundLighthouse) -> Reports:
        from torchft_x.rpc.supervisor_client import SupervisorClient

        return SupervisorClient(
            lighthouse=found.url,
            group=group,
            host=socket.gethostname(),
            boot_id=net.boot_id(),
            token=found.token,
            node=node,
            nodes=nodes,
            sidecar=sidecar,
            lighthouse_file=found.address_file,
        )

    return connect
