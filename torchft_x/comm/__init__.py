"""Process groups that can be rebuilt with other members and released at once; see docs/design.md."""

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
    reconfigure_with_store,
)

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
