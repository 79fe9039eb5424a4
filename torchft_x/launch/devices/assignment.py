"""Assigns this machine's accelerators to the replicas of a local job. Pure.

A vendor's variable names the devices that a process may use. The devices of the launcher's own shell are divided: each
replica gets its part, in the same variable and notation (indices, UUIDs, MIG names). Without a variable, all devices of the
machine are divided (accelerators.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torchft_x import env
from torchft_x.errors import ConfigError

# The first set variable names the devices to divide, and is set for the replicas; the first one of all if none is set. Those
# further right are of lower layers, which the replicas inherit.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "NVIDIA": (env.CUDA_VISIBLE_DEVICES,),
    "AMD": (env.HIP_VISIBLE_DEVICES, env.CUDA_VISIBLE_DEVICES, env.ROCR_VISIBLE_DEVICES),
    "Intel": (env.ZE_AFFINITY_MASK,),
}
ALL_VARIABLES = tuple(dict.fromkeys(name for names in VARIABLES.values() for name in names))

_INDEX = re.compile(r"\d+(\.\d+)*")  # 0.1 is Intel's second tile of the first device
_NAME = re.compile(r"(GPU|MIG)-[\w/-]+")


@dataclass(frozen=True)
class Machine:
    """Accelerators of the machine, regardless of the right to use them."""

    vendor: str
    names: tuple[str, ...] | None
    """Names in the notation of the vendor's variable; None if accelerators exist that can't be counted."""
    source: str
    """Source of the names, as a phrase for messages."""


@dataclass(frozen=True)
class Usable:
    """Accelerators that the launcher's shell may use."""

    variable: str
    names: tuple[str, ...]
    source: str


def usable(machine: Machine, environ: Mapping[str, str]) -> Usable:
    """Return the accelerators that a process with this environment may use. Raise `ConfigError` if they are unknown."""
    variables = VARIABLES[machine.vendor]
    for variable in variables:
        if variable in environ:
            value = environ[variable]
            # An index beyond the last device ends CUDA's list. For other vendors and for MIG the number is unknown.
            counted = machine.names if machine.vendor == "NVIDIA" else None
            there = len(counted) if counted and all(name.isdigit() for name in counted) else None
            return Usable(variable, visible(value, variable, there), f"{variable}={value!r} in this shell")
    if machine.names is None:
        raise ConfigError(
            f"How many GPUs this machine has can't be told ({machine.source}); name those to use in {variables[0]}."
        )
    return Usable(variables[0], machine.names, machine.source)


def visible(value: str, variable: str, there: int | None = None) -> tuple[str, ...]:
    """Return the devices that a variable names. By CUDA's rules the list ends at the first entry without one, such as -1.

    `there` is the number of devices, if it is known. Raise `ConfigError` for a device named twice, which CUDA refuses.
    """
    names: list[str] = []
    entries = [entry.strip() for entry in value.split(",")]
    pattern = _NAME if _NAME.fullmatch(entries[0]) else _INDEX  # a list has one kind of entries
    for entry in entries:
        if not pattern.fullmatch(entry) or (there is not None and entry.isdigit() and int(entry) >= there):
            break
        if entry in names:
            raise ConfigError(f"{variable}={value!r} names {entry} twice, with which no GPU can be used; correct it.")
        names.append(entry)
    return tuple(names)


def share_out(devices: Usable, *, role: str, replicas: int, each: int, taken: Collection[str] = ()) -> list[str]:
    """Return the variable's value for each replica. `taken` has the devices of other roles.

    Raise `ConfigError` if there are too few devices.
    """
    if not devices.names:
        raise ConfigError(
            f"--gpu {each}: {devices.source} leaves the job no GPU of this machine; "
            "set it otherwise, or leave --gpu out to train on the CPU."
        )
    free = [name for name in devices.names if name not in taken]
    needed = replicas * each
    if needed > len(free):
        number = f"{'is' if len(devices.names) == 1 else 'are'} {len(devices.names)} ({devices.source})"
        if len(free) < len(devices.names):
            number += f", of which other roles have {len(devices.names) - len(free)}"
        raise ConfigError(
            f"--gpu {each} for {replicas} {'replica' if replicas == 1 else 'replicas'} of the role {role} needs {needed}, "
            f"but there {number}; ask for fewer, or choose another scheduler with -s."
        )
    return [",".join(free[k * each : (k + 1) * each]) for k in range(replicas)]
