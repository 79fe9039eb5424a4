"""Adjusts each stock scheduler's request so that a group's failure stays limited to the group. One module per scheduler.

* `role`: the TorchX role of our apps, which calls `adjust` once the scheduler is known.
* `local`, `docker`, `slurm`, `kubernetes`: the requests of these schedulers.
* `containers`: what docker and kubernetes have in common.
* `excepthook`: ends ``torchx run`` with one sentence instead of TorchX's traceback.
"""

from __future__ import annotations

from typing import Any

from torchft_x.launch.schedulers import docker, kubernetes, local, slurm
from torchft_x.launch.schedulers.role import FtRole

# Scheduler's own name -> module. local_cwd calls itself "local" here, local_docker "docker".
_KNOWN = {
    "local": local,
    "local_cwd": local,
    "local_ft": local,
    "docker": docker,
    "slurm": slurm,
    "kubernetes": kubernetes,
}


def adjust(role: FtRole, scheduler: str, info: Any) -> Any:
    """Return the request, adjusted for this role. Requests of unknown schedulers, or of an unknown shape, are not changed.

    Raise `TorchftXError` with one sentence if the job can't work on this scheduler.
    """
    module = _KNOWN.get(scheduler)
    return info if module is None else module.adjust(role, info)
