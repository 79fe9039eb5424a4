"""State between processes. No pickle on any wire.

Over HTTP: flatten -> layout -> snapshot (frozen bytes) -> http.server ... http.fetch -> landing -> rebuild. Through a process group (`pg`), from the state itself: flatten -> layout -> pg ... pg -> landing -> rebuild.

* `transport`: the interface of everything that moves state, with torchft's names. `torchft_transports`: transports that
  were written for torchft's.
* `snapshot`: frozen copies, and who may read them. `shared_memory`: memory that a process of this host may read by
  itself. `memory_slots`: copies in memory that outlives the process.
"""

from torchft_x.transfer.format.flatten import check_sendable
from torchft_x.transfer.format.leaves import register_leaf
from torchft_x.transfer.http.transport import HTTPTransport
from torchft_x.transfer.pg import PGTransport
from torchft_x.transfer.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport", "PGTransport", "check_sendable", "register_leaf"]
