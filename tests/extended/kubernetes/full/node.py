"""A node with the real kubelet and containerd, and a cluster of such nodes.

A node has mounts of its own (its /run and /var/log, the file systems of its containers) and a cgroup of its own with
all of its processes. Killing the processes in that cgroup therefore loses the node without any remains.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.extended.kubernetes import cluster as small
from tests.extended.kubernetes import network
from tests.extended.kubernetes.container import skeleton
from tests.extended.kubernetes.full import cgroups, config
from tests.extended.kubernetes.full.image import Image, write_archive
from tests.extended.kubernetes.kubelet import Settings
from tests.util import scaled, wait_for

_ROOT = Path(__file__).resolve().parents[4]
_FOREVER = "2147483647"
# A kubelet sets the kernel's tunables: these files receive the values instead. Files below /var/lib, which containerd's
# network library writes, are the node's own. All other files of the daemons are in the node's folder.
_MOUNTS = """
mount --bind "$1/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mount -t overlay -o "lowerdir=/var/lib,upperdir=$1/lib,workdir=$1/lib-work" overlay /var/lib
tune() {
    echo "$2" >"$folder/$1"
    mount --bind "$folder/$1" "/proc/sys/$(echo "$1" | tr . /)"
}
folder=$1/tunables
tune vm.overcommit_memory 1
tune kernel.panic 10
tune kernel.panic_on_oops 1
mount --make-rshared /
exec sleep infinity
"""


def missing() -> str:
    """Return a sentence about what is missing on this machine, or '' if a full cluster can be started."""
    if found := small.missing() or cgroups.missing():
        return found
    if not (small.programs() / "bin/kubelet").exists() or not (small.programs() / "cni").exists():
        return "No kubelet on this machine; ./scripts/kubernetes --node builds it, once, in some four minutes."
    return ""


class RealNode(small.LocalNode):
    """A node of a `FullCluster`. After a restart it is like a machine that was installed anew."""

    def __init__(self, cluster: FullCluster, settings: Settings) -> None:
        super().__init__(cluster, settings)
        self._full = cluster
        self._cgroup = f"{cluster.prefix}{settings.name}"
        self._starts = itertools.count(1)
        self._commands = itertools.count(1)
        self._mounts = 0  # pid of the process that holds its mounts

    def start(self) -> None:
        name, number, wire = self._settings.name, self._settings.number, self._full._wire
        network.remove(wire, self._links())  # links of a previous start
        network.ip(wire, f"addr replace {network.node_address(number)}/32 dev lo")
        folder = self.folder / str(next(self._starts))
        self._write(folder)
        entry = cgroups.make(self._cgroup)
        holder = self._full._child(
            f"{name}-mounts", ["unshare", "--mount", "--", "sh", "-ec", _MOUNTS, "sh", str(folder)]
        )
        self._mounts = holder.pid
        wait_for(lambda: _is_called(holder, "sleep"), 10, f"the mounts of {name}, see {self._log('mounts')}")
        self._daemon("containerd", entry, ["--config", f"{folder}/containerd.toml"])
        answers = lambda: self._ctr("version").returncode == 0  # noqa: E731
        wait_for(answers, 30, f"containerd of {name}, see {self._log('containerd')}")
        done = self._ctr("images", "import", str(self._full.archive))
        assert done.returncode == 0, f"containerd of {name} takes no image: {done.stdout}{done.stderr}"
        kubeconfig = self._full.folder / "kubeconfig-inside"
        words = config.kubelet_words(name, number, folder, kubeconfig)
        self._child = self._daemon("kubelet", entry, words)
        began = time.time()
        wait_for(lambda: self._ready() and self._heard_since(began), 120, f"node {name}, see {self._log('kubelet')}")

    def kill_container(self, uid: str) -> None:
        """Kill the first process of a pod's only container with SIGKILL."""
        os.kill(next(pid for pid in self.pids(uid) if _number_inside(pid) == 1), signal.SIGKILL)

    def pids(self, uid: str) -> list[int]:
        """Return the ids of all processes in a pod's only container."""
        (listed,) = (cgroups.ROOT / "pids" / self._cgroup).rglob(f"{self._container(uid)}/cgroup.procs")
        return [int(pid) for pid in listed.read_text().split()]

    def run_in(self, uid: str, command: Sequence[str]) -> int:
        container = self._container(uid)
        return self._ctr("tasks", "exec", "--exec-id", f"ours-{next(self._commands)}", container, *command).returncode

    def kill(self) -> None:
        """Kill kubelet and containerd first, so that they report nothing, then shims and containers."""
        for program in ("kubelet", "containerd"):
            self._end(program)
        self._child = None
        cgroups.end(self._cgroup)
        self._end("mounts")

    def _write(self, folder: Path) -> None:
        number = self._settings.number
        for name in ("log", "lib", "lib-work", "tunables", "cni", "plugins"):
            (folder / name).mkdir(parents=True)
        default = json.loads(subprocess.run([self._ctr_path, "oci", "spec"], capture_output=True, check=True).stdout)
        kubelet = config.kubelet(number, folder, self._cgroup, self._settings.heartbeat)
        texts = {
            "containerd.toml": config.containerd(self._full._bin, folder),
            "spec.json": json.dumps(config.spec(default, skeleton(self._settings.paths).binds)),
            "cni/10-pods.conflist": json.dumps(config.cni(number, folder)),
            "kubelet.json": json.dumps(kubelet),
            "resolv.conf": f"nameserver {network.DNS}\n",
        }
        for path, text in texts.items():
            (folder / path).write_text(text)

    def _daemon(self, program: str, entry: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
        command = ["nsenter", f"--mount=/proc/{self._mounts}/ns/mnt", "--", "sh", "-ec", 'echo $$ >"$0"; exec "$@"']
        command += [str(entry), str(self._full.program(program)), *words]
        return self._full._child(f"{self._settings.name}-{program}", command)

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", f"--mount=/proc/{self._mounts}/ns/mnt", "--"]
        command = [*inside, self._ctr_path, "--address", config.SOCKET, "--namespace", "k8s.io", *words]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=scaled(30))

    @property
    def _ctr_path(self) -> str:
        return str(self._full.program("ctr"))

    def _end(self, program: str) -> None:
        name = f"{self._settings.name}-{program}"
        if name in self._full._children:
            self._full.end(name)

    def _links(self) -> list[str]:
        return network.routed(self._full._wire, self._settings.number)

    def _container(self, uid: str) -> str:
        """Return containerd's id of the pod's only container."""
        pods = self._full.api.get("/api/v1/pods")["items"]
        (pod,) = (pod for pod in pods if pod["metadata"]["uid"] == uid)
        return str(pod["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")

    def _heard_since(self, began: float) -> bool:
        """Return whether the present kubelet, not one of a previous start, has reported that it is ready."""
        node = self._full.api.get(f"/api/v1/nodes/{self._settings.name}")
        beats = [c["lastHeartbeatTime"] for c in node["status"]["conditions"] if c["type"] == "Ready"]
        return any(beat >= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)) for beat in beats)

    def _log(self, program: str) -> Path:
        return self._full.folder / "log" / f"{self._settings.name}-{program}.log"


class FullCluster(small.Cluster):
    """A cluster of `RealNode`, for `small.cluster(..., kind=FullCluster)`."""

    def __init__(self, folder: Path, node_grace: float) -> None:
        super().__init__(folder, node_grace)
        self.prefix = f"torchft-x-{secrets.token_hex(3)}-"  # prefix of its nodes' cgroups
        self.archive = folder / "images.tar"
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        module = [sys.executable, "-m", "tests.extended.kubernetes.full.cgroups", self.prefix]
        self._guard = subprocess.Popen(module, stdin=subprocess.PIPE, start_new_session=True, cwd=_ROOT)
        super().start()
        write_archive(self.archive, self._images())

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if self._guard is not None:
                self._guard.communicate()

    def _new_node(self, settings: Settings) -> RealNode:
        return RealNode(self, settings)

    def _images(self) -> list[Image]:
        environment = small.image_environment()
        found = skeleton([])
        binds = {path.lstrip("/"): 0o755 for path in found.binds}
        machine = Image(
            f"{small.IMAGE}:latest", found.links, {**found.folders, **binds}, env=environment, cwd=environment["PWD"]
        )
        pause = Image(
            config.PAUSE, programs={"bin/busybox": self.program("busybox")}, command=["/bin/busybox", "sleep", _FOREVER]
        )
        return [machine, pause]


def _is_called(child: subprocess.Popen[Any], name: str) -> bool:
    assert child.poll() is None, f"{name} ended with {child.returncode}"
    return Path(f"/proc/{child.pid}/comm").read_text().strip() == name


def _number_inside(pid: int) -> int:
    """Return the pid of a process in the innermost of its namespaces."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
