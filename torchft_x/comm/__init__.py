"""Process groups that can be rebuilt with other members, and whose collectives can be aborted at once.

Begin with `base`, the interface that all of them share. `gloo`, `accelerator` and `subprocess` implement it,
`wrappers` put one process group around another, and `quantized` reduces with fewer bits. `store` is the rendezvous of
the members. `votes` has connections of its own.

* `work`: handles of collectives. `phased_work`: handle of one that consists of several, in phases.
* `rebuilt`: common part of the groups of this package, and their end when their owner has dropped them; collectives of
  a group with one member.
* `handles`: torchft's newer way to name the members.
* `flight_recorder`: writes what PyTorch knows of a group that failed.
* `slot_sum`: sums in a fixed order.
"""

from torchft_x.comm.accelerator.nccl import ProcessGroupNCCL, ProcessGroupXCCL
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.handles import ReconfigureOptions
from torchft_x.comm.store.create import create_store_client
from torchft_x.comm.subprocess.group import (
    ProcessGroupBaby,
    ProcessGroupBabyGloo,
    ProcessGroupBabyNCCL,
    ProcessGroupBabyXCCL,
)
from torchft_x.comm.wrappers.process_groups import (
    ErrorSwallowingProcessGroupWrapper,
    FakeProcessGroupWrapper,
    ManagedProcessGroup,
    ProcessGroupDummy,
    ProcessGroupWrapper,
)
from torchft_x.comm.wrappers.reconfigure import reconfigure_with_store

__all__ = [
    "ErrorSwallowingProcessGroupWrapper",
    "FakeProcessGroupWrapper",
    "ManagedProcessGroup",
    "ProcessGroup",
    "ProcessGroupBaby",
    "ProcessGroupBabyGloo",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupDummy",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupWrapper",
    "ProcessGroupXCCL",
    "ReconfigureOptions",
    "create_store_client",
    "reconfigure_with_store",
]
