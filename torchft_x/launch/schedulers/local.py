"""`local_cwd`: every role is a process of this machine and ends with the launcher.

TorchX shares out no GPUs here, or (its option auto_set_cuda_visible_devices) those from 0 on, whatever the launcher's
own CUDA_VISIBLE_DEVICES says. It has done so by the time `adjust` is called, so ours stays.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.devices import accelerators, assignment
from torchft_x.net import check_resolvable, parse_address

if TYPE_CHECKING:
    from torchft_x.launch.schedulers.role import FtRole

log = logging.getLogger(__name__)


def adjust(role: FtRole, info: Any) -> Any:
    """Raises `ConfigError` where this machine can't run the role."""
    if env.LIGHTHOUSE in role.env:
        check_lighthouse(role.env[env.LIGHTHOUSE])
    if role.resource.gpu > 0:
        _give_gpus(role, info)
    for replica in _replicas(info, role.name):
        replica.env.setdefault(env.LAUNCHER_PID, str(os.getpid()))
    return info


def _give_gpus(role: FtRole, info: Any) -> None:
    """Each replica its own; what the user has set by ``--env`` stays."""
    replicas = _replicas(info, role.name)
    if any(variable in role.env for variable in assignment.ALL_VARIABLES):
        _restore(role, replicas)
        return
    machine = accelerators.find()
    if machine is None:
        raise ConfigError(
            f"--gpu {role.resource.gpu}: this machine has no GPU; leave --gpu out to train on the CPU, "
            "or choose another scheduler with -s."
        )
    devices = assignment.usable(machine, env.everything())
    parts = assignment.share_out(
        devices,
        role=role.name,
        replicas=role.num_replicas,
        each=role.resource.gpu,
        taken=_taken(info, role.name, devices.variable),
    )
    for replica, part in zip(replicas, parts, strict=False):  # no replicas in a request of another shape
        replica.env.pop(env.CUDA_VISIBLE_DEVICES, None)  # TorchX's
        replica.env[devices.variable] = part
    # TorchX may have warned at length that nobody shares them out
    shares = "; ".join(f"{role.name}/{k} has {part}" for k, part in enumerate(parts))
    log.info("GPUs are shared out by %s, whatever TorchX says about it: %s", devices.variable, shares)


def _restore(role: FtRole, replicas: list[Any]) -> None:
    """What the user has set, where TorchX's option has overwritten it."""
    given = role.env.get(env.CUDA_VISIBLE_DEVICES)
    if given is not None:
        for k, replica in enumerate(replicas):
            replica.env[env.CUDA_VISIBLE_DEVICES] = given.replace("${replica_id}", str(k))


def _taken(info: Any, role: str, variable: str) -> set[str]:
    """The devices of the roles that we have adjusted before."""
    taken: set[str] = set()
    for other in _role_params(info):
        for replica in _replicas(info, other):
            if other != role and env.LAUNCHER_PID in replica.env:
                taken.update(replica.env.get(variable, "").split(","))
    return taken


def _role_params(info: Any) -> dict[str, Any]:
    """By role in the local scheduler's request; empty if it looks otherwise."""
    params = getattr(getattr(info, "request", None), "role_params", None)
    return params if isinstance(params, dict) else {}


def _replicas(info: Any, role: str) -> list[Any]:
    """The replicas' parameters of one role."""
    return [r for r in _role_params(info).get(role, []) if isinstance(getattr(r, "env", None), dict)]


def check_lighthouse(addresses: str) -> None:
    """The name of each must be known here. Nothing is connected."""
    what = f"The lighthouse's address (--lighthouse or {env.LIGHTHOUSE})"
    for address in addresses.split(","):
        check_resolvable(parse_address(address, what=what), what=what)
