"""Shares out the accelerators of this machine among the replicas of a local job. A child process asks torch how many there are.

A vendor's variable names the devices that a process may use. The devices of the launcher's own shell are divided: each
replica gets its part, in the same variable and notation (indices, UUIDs, MIG names). Without a variable, all devices of the
machine are divided.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.timing import COLD_IMPORT

# The first set variable names the devices to divide, and is set for the replicas; the first one of all if none is set. Those
# further right are of lower layers, which the replicas inherit.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "NVIDIA": (env.CUDA_VISIBLE_DEVICES,),
    "AMD": (env.HIP_VISIBLE_DEVICES, env.CUDA_VISIBLE_DEVICES, env.ROCR_VISIBLE_DEVICES),
    "Intel": (env.ZE_AFFINITY_MASK,),
}
ALL_VARIABLES = tuple(dict.fromkeys(name for names in VARIABLES.values() for name in names))

_ASK = """if True:
    import torch, torch.distributed as dist
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    kind = torch.accelerator.current_accelerator().type if count else ""
    vendor = "AMD" if torch.version.hip else {"cuda": "NVIDIA", "xpu": "Intel"}.get(kind, "none")
    backends = [b for b in ("gloo", "nccl", "xccl") if getattr(dist, f"is_{b}_available", lambda: False)()]
    print(torch.__version__, count, vendor, ",".join(backends) or "none")
"""


class Torch(NamedTuple):
    """Answer of torch in a process of its own."""

    version: str
    devices: int
    """Number of accelerators that the environment leaves it."""
    vendor: str
    """Key of `VARIABLES`, or ``none``."""
    backends: str


def ask_torch(environ: Mapping[str, str], folder: Path | None = None) -> Torch:
    """Import torch in a process with this environment, in `folder`. Raise `ConfigError` if it fails or takes too long."""
    command = [sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COLD_IMPORT,
            cwd=folder,
            env=dict(environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"import torch did not end within {COLD_IMPORT:g} s; is its disk reachable?") from None
    answer = done.stdout.split()[-4:]
    if done.returncode != 0 or len(answer) < 4:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"import torch fails: {last}")
    version, devices, vendor, backends = answer
    return Torch(version, int(devices), vendor, backends)


@dataclass(frozen=True)
class Usable:
    """Accelerators that the launcher's shell may use."""

    variable: str
    names: tuple[str, ...]
    source: str
    """Source of the names, as a phrase for messages."""


@functools.cache
def of_this_process() -> Usable:
    """Return the accelerators that this process may use; torch is asked once. Raise `ConfigError` if it does not load."""
    return usable(env.everything())


def usable(environ: Mapping[str, str]) -> Usable:
    """Return the accelerators that a process with this environment may use. Raise `ConfigError` if torch does not load."""
    # A script's folder that is called like a module of Python's is not meant. Python 3.10 does not know the variable.
    torch = ask_torch({**environ, "PYTHONSAFEPATH": "1"})
    variables = VARIABLES.get(torch.vendor, (env.CUDA_VISIBLE_DEVICES,))
    for variable in variables:
        if variable in environ:
            named = [name.strip() for name in environ[variable].split(",")]
            # torch counts at most one MIG device
            names = named if named[0].startswith("MIG-") else named[: torch.devices]
            return Usable(variable, tuple(names), f"{variable}={environ[variable]!r} in this shell")
    names = [str(k) for k in range(torch.devices)] if torch.vendor in VARIABLES else []
    return Usable(variables[0], tuple(names), f"as torch {torch.version} counts them")


def share_out(devices: Usable, *, role: str, replicas: int, each: int, taken: Collection[str] = ()) -> list[str]:
    """Return the variable's value for each replica. `taken` has the devices of other roles.

    Raise `ConfigError` if there are too few devices.
    """
    if not devices.names:
        raise ConfigError(
            f"--gpu {each}: this machine has no GPU for the job ({devices.source}); leave --gpu out to train on the CPU, "
            "or choose another scheduler with -s."
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
