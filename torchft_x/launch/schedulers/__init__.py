"""What each stock scheduler's request needs so that one group's death stays its own. One module per scheduler.

* `role`: the TorchX role of our apps, which calls `adjust` once the scheduler is known.
* `containers`: what docker and kubernetes have in common.
* `excepthook`: ends ``torchx run`` with one sentence instead of TorchX's traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchft_x.launch.schedulers import docker, kubernetes, local, slurm

if TYPE_CHECKING:
    from torchft_x.launch.schedulers.role import FtRole

# TorchX's name for itself -> module; local_cwd calls itself "local" here, local_docker "docker".
_KNOWN = {
    "local": local,
    "local_cwd": local,
    "local_ft": local,
    "docker": docker,
    "slurm": slurm,
    "kubernetes": kubernetes,
}


def adjust(role: FtRole, scheduler: str, info: Any) -> Any:
    """The request, adjusted for this role. Requests of unknown schedulers, or of an unknown shape, come back as they are.

    Raises `TorchftXError` with one sentence where the job can't work there.
    """
    module = _KNOWN.get(scheduler)
    return info if module is None else module.adjust(role, info)
