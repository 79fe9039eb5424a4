"""`slurm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchft_x.launch.role import FtRole


def adjust(role: FtRole, info: Any) -> Any:
    return info
