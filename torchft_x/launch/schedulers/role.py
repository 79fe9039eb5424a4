"""The TorchX role of our apps: it adjusts the scheduler's request once the scheduler is known.

TorchX calls `pre_proc` for every role while it makes the scheduler's request, with stock schedulers too. So it is the
place for what a component can't know: whether the job runs on this machine, on Slurm, on Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torchx import specs

from torchft_x.errors import TorchftXError
from torchft_x.launch.schedulers import adjust
from torchft_x.launch.schedulers.excepthook import refused

Hook = Callable[[str, Any], Any]
"""A user's own adjustment: scheduler's name and its dry-run info in, the dry-run info out (None: the same)."""


@dataclass(frozen=True, kw_only=True)
class RoleFacts:
    """What the adjustments for a scheduler must know of a role beyond TorchX's own fields."""

    kind: Literal["lighthouse", "trainer", "sidecar"]
    groups: int
    """Replica groups of the job."""
    nodes: int = 1
    """Replicas of the trainer role that form one group: replica k is node k % nodes of group k // nodes."""
    min_replicas: int = 1
    own_lighthouse: bool = True
    """Whether the job brings its lighthouse, as its first role."""
    lighthouses: int = 1
    """How many the job brings, if it does."""
    max_restarts: int = 10
    """Of one replica within an hour."""
    hooks: tuple[Hook, ...] = ()
    """Called in turn after our own adjustment."""


@dataclass
class FtRole(specs.Role):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Equal to a plain `Role` in every field. For schedulers it doesn't know it changes nothing."""

    ft: RoleFacts = field(default_factory=lambda: RoleFacts(kind="sidecar", groups=1))

    def __post_init__(self) -> None:
        self.given_image = self.image  # TorchX puts a patched image in its place, in the first role only

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """One sentence on stderr and `SystemExit` with code 2 where the job can't work there."""
        try:
            info = adjust(self, scheduler, dryrun_info)
            for hook in self.ft.hooks:
                changed = hook(scheduler, info)
                info = info if changed is None else changed
            return info
        except TorchftXError as e:
            raise refused(str(e)) from None
