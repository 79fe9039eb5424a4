"""Assigns this machine's accelerators to the replicas of a local job, and finds them without torch.

A vendor's variable names the devices that a process may use. The devices of the launcher's own shell are divided: each
replica gets its part, in the same variable and notation (indices, UUIDs, MIG names). Without a variable, all devices of the
machine are divided: those in the driver's list, or else the device files (Linux and WSL).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.timing import TOOL

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
_WSL_TOOLS = "/usr/lib/wsl/lib"  # where WSL puts nvidia-smi; not on every shell's PATH
_INTEL = "0x8086"  # PCI vendor id


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


def find_accelerators(root: Path = Path("/")) -> Machine | None:
    """Return the accelerators of the first vendor found: NVIDIA, AMD, Intel; None if there are none. `root` is for tests."""
    return _nvidia(root) or _amd(root) or _intel(root)


def _nvidia(root: Path) -> Machine | None:
    listed = from_smi(_run_smi())
    if listed:
        return Machine("NVIDIA", listed, "as nvidia-smi -L lists them")
    files = [f for f in (root / "dev").glob("nvidia[0-9]*") if f.name[6:].isdigit()]
    if files:
        return Machine("NVIDIA", tuple(str(k) for k in range(len(files))), "by /dev/nvidia[0-9]*")
    if (root / "dev/dxg").exists():
        return Machine("NVIDIA", None, "WSL's /dev/dxg is there, but no nvidia-smi that lists any")
    return None


def _run_smi() -> str:
    """Return the output of ``nvidia-smi -L``, or '' if the tool or the driver is missing."""
    tool = shutil.which("nvidia-smi", path=f"{env.read('PATH', '')}:{_WSL_TOOLS}")
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=TOOL, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def from_smi(text: str) -> tuple[str, ...]:
    """Return the devices in ``nvidia-smi -L``'s list: indices, or UUIDs if a GPU is split into MIG devices."""
    gpus: list[tuple[str, list[str]]] = []  # UUID of each GPU, and its MIG devices
    for line in text.splitlines():
        found = re.match(r"\s*(GPU|MIG)\b.*\(UUID: ([^)]+)\)", line)
        if found is None:
            continue
        if found[1] == "GPU":
            gpus.append((found[2], []))
        elif gpus:
            gpus[-1][1].append(found[2])
    if not any(parts for _, parts in gpus):
        return tuple(str(k) for k in range(len(gpus)))
    return tuple(name for uuid, parts in gpus for name in parts or [uuid])


def _amd(root: Path) -> Machine | None:
    """Count the kernel driver's nodes that can compute and whose device file exists: a container may have only some."""
    count = 0
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            node = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
        except OSError:  # the container may not use this device
            continue
        file = root / f"dev/dri/renderD{node.get('drm_render_minor', '').strip()}"
        count += node.get("simd_count", "0").strip() != "0" and file.exists()
    return Machine("AMD", tuple(str(k) for k in range(count)), "by /sys/class/kfd") if count else None


def _intel(root: Path) -> Machine | None:
    count = 0
    for file in (root / "dev/dri").glob("renderD*"):
        try:
            count += (root / "sys/class/drm" / file.name / "device/vendor").read_text().strip() == _INTEL
        except OSError:
            continue
    return Machine("Intel", tuple(str(k) for k in range(count)), "by /dev/dri") if count else None
