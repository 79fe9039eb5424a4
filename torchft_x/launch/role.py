"""The TorchX role of our apps: checks and adjusts the request once the scheduler is known.

TorchX calls `pre_proc` for every role while it makes the scheduler's request, with stock schedulers too. So it is the
place for what a component can't know: whether the job runs on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torchx import specs

from torchft_x import env
from torchft_x.errors import TorchftXError
from torchft_x.launch.checks import check_gpus, check_lighthouse


@dataclass
class FtRole(specs.Role):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Equal to a plain `Role` in every field. For schedulers it doesn't know it changes nothing."""

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """Raises `SystemExit` with one sentence where the job can't work on this machine."""
        # local_cwd calls itself "local" here; a container of local_docker has its own host, devices and processes
        if scheduler.startswith("local") and scheduler != "local_docker":
            try:
                check_gpus(self.resource.gpu)
                if env.LIGHTHOUSE in self.env:
                    check_lighthouse(self.env[env.LIGHTHOUSE])
            except TorchftXError as e:
                raise SystemExit(f"torchft_x: {e}") from None
            for replica in _local_replicas(dryrun_info, self.name):
                replica.env.setdefault(env.LAUNCHER_PID, str(os.getpid()))
        return dryrun_info


def _local_replicas(dryrun_info: Any, role: str) -> list[Any]:
    """The replicas' parameters in the local scheduler's request; empty if it looks otherwise."""
    params = getattr(getattr(dryrun_info, "request", None), "role_params", None)
    replicas = params.get(role, []) if isinstance(params, dict) else []
    return [r for r in replicas if isinstance(getattr(r, "env", None), dict)]
