"""`local_cwd`: every role is a process of this machine and ends with the launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torchft_x import env
from torchft_x.launch.checks import check_gpus, check_lighthouse

if TYPE_CHECKING:
    from torchft_x.launch.role import FtRole


def adjust(role: FtRole, info: Any) -> Any:
    """Raises `ConfigError` where this machine can't run the role."""
    check_gpus(role.resource.gpu)
    if env.LIGHTHOUSE in role.env:
        check_lighthouse(role.env[env.LIGHTHOUSE])
    for replica in _replicas(info, role.name):
        replica.env.setdefault(env.LAUNCHER_PID, str(os.getpid()))
    return info


def _replicas(info: Any, role: str) -> list[Any]:
    """The replicas' parameters in the local scheduler's request; empty if it looks otherwise."""
    params = getattr(getattr(info, "request", None), "role_params", None)
    replicas = params.get(role, []) if isinstance(params, dict) else []
    return [r for r in replicas if isinstance(getattr(r, "env", None), dict)]
