"""Adjusts requests of `local_cwd`: every role is a process of this machine and ends with the launcher.

TorchX assigns no GPUs here, or, with its option auto_set_cuda_visible_devices, those from 0 on regardless of the launcher's
own CUDA_VISIBLE_DEVICES. `adjust` runs after TorchX's assignment and overrides it, with the devices that the user has set by
``--env`` if there are any.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from torchft_x import env
from torchft_x.arguments import option, set_option
from torchft_x.launch.process import devices
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.net import check_resolvable, parse_address

log = logging.getLogger(__name__)


def adjust(role: FtRole, info: Any) -> Any:
    """Return the adjusted request. Raise `ConfigError` if this machine can't run the role."""
    if env.LIGHTHOUSE in role.env:
        check_lighthouse(role.env[env.LIGHTHOUSE])
    if role.resource.gpu > 0:
        _give_gpus(role, info)
    for replica in _replicas(info, role.name):
        set_option(replica.args, "--launcher_pid", str(os.getpid()))
    return info


def _give_gpus(role: FtRole, info: Any) -> None:
    """Assign each replica its own GPUs, unless the user has set the devices by ``--env``."""
    replicas = _replicas(info, role.name)
    if any(variable in role.env for variable in devices.ALL_VARIABLES):
        _restore(role, replicas)
        return
    mine = devices.of_this_process()
    parts = devices.share_out(
        mine,
        role=role.name,
        replicas=role.num_replicas,
        each=role.resource.gpu,
        taken=_taken(info, role.name, mine.variable),
    )
    for replica, part in zip(replicas, parts, strict=False):  # no replicas in a request of another shape
        replica.env.pop(env.CUDA_VISIBLE_DEVICES, None)  # TorchX's assignment
        replica.env[mine.variable] = part
    # TorchX may have warned at length that no GPUs are assigned.
    shares = "; ".join(f"{role.name}/{k} has {part}" for k, part in enumerate(parts))
    log.info("GPUs are shared out by %s, whatever TorchX says about it: %s", mine.variable, shares)


def _restore(role: FtRole, replicas: list[Any]) -> None:
    """Restore the user's CUDA_VISIBLE_DEVICES, which TorchX's option has overwritten."""
    given = role.env.get(env.CUDA_VISIBLE_DEVICES)
    if given is not None:
        for k, replica in enumerate(replicas):
            replica.env[env.CUDA_VISIBLE_DEVICES] = given.replace("${replica_id}", str(k))


def _taken(info: Any, role: str, variable: str) -> set[str]:
    """Return the devices of the roles that are already adjusted."""
    taken: set[str] = set()
    for other in _role_params(info):
        for replica in _replicas(info, other):
            if other != role and option(replica.args, "--launcher_pid") is not None:
                taken.update(replica.env.get(variable, "").split(","))
    return taken


def _role_params(info: Any) -> dict[str, Any]:
    """Return the replicas' parameters in the local scheduler's request by role, or none if its shape is unknown."""
    params = getattr(getattr(info, "request", None), "role_params", None)
    return params if isinstance(params, dict) else {}


def _replicas(info: Any, role: str) -> list[Any]:
    """Return the parameters of one role's replicas."""
    return [r for r in _role_params(info).get(role, []) if isinstance(getattr(r, "env", None), dict)]


def check_lighthouse(addresses: str) -> None:
    """Raise `ConfigError` unless the host name of each address can be resolved here. Connect to none."""
    what = f"The lighthouse's address (--lighthouse or {env.LIGHTHOUSE})"
    for address in addresses.split(","):
        check_resolvable(parse_address(address, what=what), what=what)
