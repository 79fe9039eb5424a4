"""A container: runc on an image of this machine's own /usr, Python and source, all read-only, with a private rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

# Folders of this machine in the image, besides `Runtime`'s own paths.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
_CAPABILITIES = [  # the capabilities that container runtimes give root
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
]


@dataclass(frozen=True)
class Skeleton:
    """Contents of the image: the entries of its root, and the folders of this machine that it mounts, read-only."""

    links: dict[str, str]
    folders: dict[str, int]  # empty folders, with their mode
    binds: list[str]


def skeleton(paths: Sequence[str]) -> Skeleton:
    """Return the image's contents. `paths`: directories of this machine besides the system's."""
    links, binds = {}, []
    for entry in (Path("/") / name for name in _SYSTEM):
        if entry.is_symlink():
            links[entry.name] = os.readlink(entry)
        elif entry.is_dir():
            binds.append(str(entry))
    folders = dict.fromkeys(("proc", "sys", "dev"), 0o755) | dict.fromkeys(("tmp", "run", "var/tmp"), 0o1777)
    return Skeleton({**links, "var/run": "/run"}, folders, [*binds, *paths])


@dataclass(frozen=True)
class Mount:
    """A directory, file or tmpfs (`source` None) at `target` in the container."""

    source: Path | None
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Process:
    """Command of a container, with its environment, user and limits."""

    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    uid: int = 0
    gid: int = 0
    read_only_root: bool = False
    no_new_privileges: bool = False
    memory: int | None = None  # limit in bytes


class Runtime:
    """The containers of one node: creates, starts, signals and removes them."""

    def __init__(self, runc: str, folder: Path, image: Sequence[str] = ()) -> None:
        self._runc = runc
        self._image = image  # directories of this machine in containers, besides the system's
        self._folder = folder  # folder of runc's state

    def bundle(self, folder: Path, name: str, pod: int, hostname: str, process: Process, mounts: list[Mount]) -> None:
        """Write the bundle of a container in the network namespace of process `pod` to `folder`."""
        root = folder / "rootfs"
        image = skeleton(self._image)
        for name_of, mode in image.folders.items():
            (root / name_of).mkdir(parents=True)
            (root / name_of).chmod(mode)
        for link, target in image.links.items():
            (root / link).symlink_to(target)
        binds = [Mount(Path(path), path, read_only=True) for path in image.binds]
        every = [
            _kernel("proc", "/proc"),
            _kernel("tmpfs", "/dev", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ]
        every += [_kernel("devpts", "/dev/pts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"])]
        every += [_kernel("tmpfs", "/dev/shm", ["nosuid", "nodev", "mode=1777", "size=1g"])]
        every += [_kernel("sysfs", "/sys", ["nosuid", "noexec", "nodev", "ro"])]
        # Mount outer paths first: a pod may have a volume at /tmp, and this source may lie below /tmp.
        every += [_bind(m) for m in sorted([*binds, *mounts], key=lambda m: m.target.rstrip("/").count("/"))]
        namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
        namespaces.append({"type": "network", "path": f"/proc/{pod}/ns/net"})
        capabilities = _CAPABILITIES if process.uid == 0 else []
        config = {
            "ociVersion": "1.0.2",
            "hostname": hostname,
            "root": {"path": "rootfs", "readonly": process.read_only_root},
            "process": {
                "user": {"uid": process.uid, "gid": process.gid},
                "args": list(process.args),
                "env": [f"{k}={v}" for k, v in process.env.items()],
                "cwd": process.cwd,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
                "noNewPrivileges": process.no_new_privileges,
            },
            "mounts": every,
            "linux": {
                "namespaces": namespaces,
                "cgroupsPath": f"/torchft-x-{name}",
                "resources": {"memory": {"limit": process.memory}} if process.memory else {},
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            },
        }
        (folder / "config.json").write_text(json.dumps(config))

    def start(self, name: str, bundle: Path, log: Path, ended: Callable[[int], None]) -> Running:
        """Run the container in `bundle`. Its output goes to `log`, and `ended` is called with its exit code."""
        return Running(self._command("run", "--bundle", str(bundle), name), self._command("kill", name), log, ended)

    def run_in(self, name: str, args: Sequence[str], seconds: float) -> int:
        """Return the exit code of a command in a running container; -1: it can't be run or takes too long."""
        try:
            return subprocess.run(
                self._command("exec", name, *args), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            return -1

    def remove(self, name: str) -> None:
        """Remove a container, and kill its remaining processes."""
        subprocess.run(self._command("delete", "--force", name), stdin=subprocess.DEVNULL, capture_output=True)

    def names(self) -> list[str]:
        return os.listdir(self._folder) if self._folder.exists() else []

    def kill(self, name: str) -> None:
        subprocess.run(self._command("kill", name, "KILL"), stdin=subprocess.DEVNULL, capture_output=True)

    def remove_all(self) -> None:
        for name in self.names():
            self.remove(name)

    def _command(self, *words: str) -> list[str]:
        return [self._runc, "--root", str(self._folder), *words]


class Running:
    """A started container. Writes each line of its output with its time to the log, as a node does."""

    def __init__(self, command: list[str], kill: list[str], log: Path, ended: Callable[[int], None]) -> None:
        self._kill = kill
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        threading.Thread(target=self._follow, args=(log, ended), daemon=True).start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process, if it has not ended."""
        subprocess.run([*self._kill, number.name], stdin=subprocess.DEVNULL, capture_output=True)

    def _follow(self, log: Path, ended: Callable[[int], None]) -> None:
        assert self._child.stdout is not None
        with open(log, "ab", buffering=0) as out, open(self._child.stdout.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                out.write(f"{now()} ".encode() + line.rstrip(b"\n") + b"\n")
        code = self._child.wait()
        ended(code if code >= 0 else 128 - code)


def now() -> str:
    """Return the time as Kubernetes writes it, with microseconds."""
    return datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _kernel(kind: str, target: str, options: list[str] | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": options or []}


def _bind(mount: Mount) -> dict[str, Any]:
    mode = "ro" if mount.read_only else "rw"
    if mount.source is None:
        return _kernel("tmpfs", mount.target, ["nosuid", "nodev", "mode=1777"])
    return {"destination": mount.target, "type": "bind", "source": str(mount.source), "options": ["rbind", mode]}
