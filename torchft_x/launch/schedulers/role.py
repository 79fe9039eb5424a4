"""TorchX role of our apps, with the facts by which it adjusts its scheduler's request once the scheduler is known.

TorchX, with stock schedulers too, calls `pre_proc` for every role while it makes the scheduler's request. The adjustments
belong there because a component does not know whether the job runs on this machine, on Slurm or on Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torchx import specs

from torchft_x.errors import TorchftXError
from torchft_x.launch.schedulers.excepthook import refused

Hook = Callable[[str, Any], Any]
"""User's own adjustment. It takes the scheduler's name and dry-run info, and returns dry-run info, or None for the given."""


@dataclass(frozen=True, kw_only=True)
class RoleFacts:
    """Facts about a role for the adjustments, beyond TorchX's own fields."""

    kind: Literal["lighthouse", "trainer", "sidecar"]
    groups: int
    """Number of the job's replica groups."""
    nodes: int = 1
    """Number of the trainer role's replicas that form one group: replica k is node k % nodes of group k // nodes."""
    min_replicas: int = 1
    own_lighthouse: bool = True
    """Whether the job has its own lighthouse, as its first role."""
    lighthouses: int = 1
    """Number of the job's own lighthouses, if it has any."""
    max_restarts: int = 10
    """Largest number of restarts of one replica within an hour."""
    hooks: tuple[Hook, ...] = ()
    """Hooks, called in this order after our own adjustment."""


@dataclass
class FtRole(specs.Role):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Role with all fields of TorchX's `Role`, and its facts. It changes no request of an unknown scheduler."""

    ft: RoleFacts = field(default_factory=lambda: RoleFacts(kind="sidecar", groups=1))

    def __post_init__(self) -> None:
        self.given_image = self.image  # TorchX later replaces `image` by a patched one, in the first role only

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """Return the adjusted request. Print one sentence and raise `SystemExit` with code 2 if the job can't work there."""
        from torchft_x.launch.schedulers import adjust  # its modules import this one

        try:
            info = adjust(self, scheduler, dryrun_info)
            for hook in self.ft.hooks:
                changed = hook(scheduler, info)
                info = info if changed is None else changed
            return info
        except TorchftXError as e:
            raise refused(str(e)) from None
