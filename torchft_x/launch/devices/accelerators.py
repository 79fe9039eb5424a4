"""Finds the accelerators of this machine without torch, by the driver's list or else by device files. Linux and WSL."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from torchft_x import env
from torchft_x.launch.devices.assignment import Machine

_WSL_TOOLS = "/usr/lib/wsl/lib"  # where WSL puts nvidia-smi; not on every shell's PATH
_SMI_TIMEOUT = 20.0  # seconds; with many GPUs and no persistence daemon nvidia-smi takes several
_INTEL = "0x8086"  # PCI vendor id


def find(root: Path = Path("/")) -> Machine | None:
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
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT, check=False)
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
