"""Room: state between processes. No pickle on any wire.

flatten -> layout -> snapshot (frozen bytes) -> http_server ... http_client -> http_fetch -> landing -> rebuild.
The process-group transport (pg) sends from the state itself: flatten -> layout -> pg ... pg -> landing -> rebuild.
"""

from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.format.leaves import register_leaf
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.pg import PGTransport
from torchft_x.transfer.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport", "PGTransport", "check_sendable", "register_leaf"]
