"""Room: state between processes. No pickle on any wire.

flatten -> layout -> snapshot (frozen bytes) -> http_server ... http_client -> http_fetch -> landing -> rebuild.
"""

from torchft_x.transfer.flatten import check_sendable
from torchft_x.transfer.http import HTTPTransport
from torchft_x.transfer.leaves import register_leaf
from torchft_x.transfer.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport", "check_sendable", "register_leaf"]
