"""Role of our apps with the facts that the adjustments of its scheduler's request read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torchx import specs

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
class RoleWithFacts(specs.Role):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Role with all fields of TorchX's `Role`, and its facts."""

    ft: RoleFacts = field(default_factory=lambda: RoleFacts(kind="sidecar", groups=1))

    def __post_init__(self) -> None:
        self.given_image = self.image  # TorchX later replaces `image` by a patched one, in the first role only
