"""Changes of a running job's number of replica groups: check the number, and plan the new groups' processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchft_x.errors import ConfigError
from torchft_x.launch.devices import assignment
from torchft_x.launch.job import checks
from torchft_x.launch.keeper.plan import JobPlan, RolePlan
from torchft_x.launch.keeper.upkeep import Replica


def check(plan: JobPlan, wanted: int, trainers: Iterable[Replica]) -> RolePlan:
    """Return the role whose number of replicas changes. Raise `ConfigError` if the job can't have so many groups."""
    role = plan.trainer
    command = None if role is None or role.template is None else role.template.args
    checks.check_groups(wanted, least=plan.min_replicas, command=command)
    assert role is not None
    done = next((r for r in trainers if r.over and not r.leaving and r.code == 0), None)
    if done is not None:
        raise ConfigError(f"the job is about to end: {done.name} has finished.")
    return role


def share_devices(
    role: RolePlan,
    count: int,
    machine: assignment.Machine | None,
    environ: Mapping[str, str],
    others: list[Mapping[str, str]],
) -> list[dict[str, str]]:
    """Return the variables that name the accelerators of each of `count` new replicas.

    `others` are the environments of the existing replicas. Raise `ConfigError` if the machine has no GPU, or too few
    that are free.
    """
    assert role.template is not None
    if role.gpu <= 0 or any(name in role.template.env for name in assignment.ALL_VARIABLES):  # --env names them for all
        return [{} for _ in range(count)]
    if machine is None:
        raise ConfigError("this machine has no GPU any more.")
    devices = assignment.usable(machine, environ)
    taken = {name for other in others for name in other.get(devices.variable, "").split(",")}
    parts = assignment.share_out(devices, role=role.name, replicas=count, each=role.gpu, taken=taken)
    return [{devices.variable: part} for part in parts]
