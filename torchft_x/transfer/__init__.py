"""Moves state between processes. No pickle on any wire.

Over HTTP: flatten -> layout -> snapshot (frozen bytes) -> http.server ... http.fetch -> landing -> rebuild.

* `transport`: the interface of everything that moves state, with torchft's names. `torchft_transports`: adapts
  transports that were written for torchft's interface.
* `snapshot`: frozen copies of a state, and their readers. `shared_memory`: memory that another process of this host
  can read directly. `memory_slots`: copies in memory that outlives the process.
* `packed`: a small state dict as one piece of bytes.
* `storage`: state between groups through a folder of any fsspec file system.
* `convert`: durable checkpoints for people and for other programs, the command ``torchft_x checkpoint``.
"""

from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.format.leaves import register_leaf
from torchft_x.transfer.http.transport import HTTPTransport, PGTransport
from torchft_x.transfer.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport", "PGTransport", "check_sendable", "register_leaf"]
