"""A real Kubernetes cluster for tests: etcd, API server, controllers, scheduler and kube-proxy as child processes.

The nodes are small kubelets of our own (kubelet.py), whose pods are containers of runc. All state is in one private
directory and one network namespace. The only link to the outside is a port of 127.0.0.1, which leads to the API server,
so that several clusters may run side by side. `scripts/kubernetes` builds the programs. Needs root.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.extended.kubernetes import network
from tests.extended.kubernetes.api import Api, ApiError
from tests.extended.kubernetes.container import Runtime
from tests.extended.kubernetes.kubelet import Settings
from tests.extended.kubernetes.status import ready_word
from tests.interpreters import TRAINERS_PYTHON
from tests.util import scaled, wait_for
from torchft_x import env

IMAGE = "local/machine"  # this machine's /usr, this Python and this source; the only image that every node has
_ROOT = Path(__file__).resolve().parents[3]
_PORT = 6443


def programs() -> Path:
    """Return the folder in which `scripts/kubernetes` puts the programs that it builds."""
    where = subprocess.run([_ROOT / "scripts/kubernetes", "--where"], capture_output=True, text=True, check=True)
    return Path(where.stdout.strip())


def missing() -> str:
    """Return a sentence about what is missing on this machine, or '' if a cluster can be started."""
    if os.geteuid() != 0:
        return "A cluster needs root, for its network namespaces and containers."
    if not (programs() / ".stamp").exists():
        return "No Kubernetes on this machine; ./scripts/kubernetes builds it, once, in some five minutes."
    return ""


class Cluster:
    """A running cluster: owns the daemons, the nodes and their folder.

    `kubeconfig` is the administrator's file, and `api` the administrator's client.
    """

    def __init__(self, folder: Path, node_grace: float) -> None:
        self.folder = folder  # private to this cluster
        self.kubeconfig = folder / "kubeconfig"
        self.api: Api
        self.nodes: dict[str, LocalNode] = {}
        self._node_grace = node_grace
        self._bin = programs() / "bin"
        self._lib = programs() / "lib"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._wire = 0  # pid of the process that holds the network namespace
        self._tokens = {name: secrets.token_hex(16) for name in ("admin", "system:kube-controller-manager", "guest")}

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Return the output of kubectl. Fail with its error."""
        done = subprocess.run(
            [str(self._bin / "kubectl"), "--kubeconfig", str(self.kubeconfig), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=scaled(60),
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def program(self, name: str) -> Path:
        return self._bin / name

    def guest_kubeconfig(self) -> Path:
        """Write and return the kubeconfig of `guest`, a user without any rights."""
        path = self.folder / "kubeconfig-guest"
        path.write_text(self._config("guest", self._tokens["guest"], self.api.port))
        path.chmod(0o600)
        return path

    def add_node(self, name: str, resources: Mapping[str, str] | None = None) -> LocalNode:
        """Add a node, which is ready on return. `resources` such as ``nvidia.com/gpu`` are only counted."""
        number = len(self.nodes) + 1
        folder = self.folder / name
        folder.mkdir()
        settings = Settings(
            name=name,
            number=number,
            api=["127.0.0.1", _PORT, self.api.certificate, self._tokens["admin"]],
            runc=str(self._bin / "runc"),
            folder=str(folder),
            images={IMAGE: image_environment()},
            paths=_image_paths(),
            certificate=[str(self.folder / "pki/apiserver.crt"), str(self.folder / "pki/apiserver.key")],
            resources=dict(resources or {}),
            heartbeat=min(1.0, self._node_grace / 6),
        )
        node = self.nodes[name] = self._new_node(settings)
        node.start()
        return node

    def _new_node(self, settings: Settings) -> LocalNode:
        return LocalNode(self, settings)

    # --- faults ----------------------------------------------------------------------------------------------------

    def stop_api_server(self) -> None:
        """Kill the API server. Its data stays in etcd."""
        self.end("kube-apiserver")

    def start_api_server(self) -> None:
        """Start the API server (again). It is ready on return."""
        d = self.folder
        self.spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --secure-port={_PORT} --insecure-port=0 "
            f"--cert-dir={d}/pki --token-auth-file={d}/tokens.csv --authorization-mode=RBAC "
            f"--service-account-issuer=https://cluster --service-account-signing-key-file={d}/pki/sa.key "
            f"--service-account-key-file={d}/pki/sa.key --service-cluster-ip-range={network.SERVICES} "
            f"--advertise-address={network.CONTROL} --kubelet-preferred-address-types=InternalIP --allow-privileged=true "
            "--v=1",
        )
        wait_for(self._ready, 60, f"the API server, see {d}/log")

    # --- start and stop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("log", "pki", "etcd"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "etcd").chmod(0o700)
        d = self.folder
        self._keys()
        self._sweeper = _sweeper(str(self._bin / "runc"), d)
        wire = subprocess.Popen(["unshare", "--net", "--", "setpriv", "--pdeathsig", "KILL", "--", "sleep", "infinity"])
        self._children["wire"] = wire
        own = Path("/proc/self/ns/net").stat().st_ino
        wait_for(lambda: Path(f"/proc/{wire.pid}/ns/net").stat().st_ino != own, 5, "a network namespace")
        self._wire = wire.pid
        network.lay_wire(wire.pid)
        port = self._relay()
        self.api = Api("127.0.0.1", port, str(d / "pki/apiserver.crt"), self._tokens["admin"])
        self.spawn("etcd", f"--data-dir={d}/etcd --unsafe-no-fsync --logger=zap --log-level=warn")
        self.start_api_server()
        self.kubeconfig.write_text(self._config("admin", self._tokens["admin"], port))
        inner = d / "kubeconfig-inside"
        inner.write_text(self._config("admin", self._tokens["admin"], _PORT))
        for path in (self.kubeconfig, inner):
            path.chmod(0o600)
        grace = self._node_grace
        self.spawn(
            "kube-controller-manager",
            f"--kubeconfig={inner} --leader-elect=false --port=0 --secure-port=10257 --cert-dir={d}/pki/kcm "
            f"--service-account-private-key-file={d}/pki/sa.key --root-ca-file={d}/pki/apiserver.crt "
            f"--node-monitor-period={min(5.0, grace / 8):.1f}s --node-monitor-grace-period={grace:.0f}s",
        )
        self.spawn(
            "kube-scheduler",
            f"--kubeconfig={inner} --leader-elect=false --port=0 --secure-port=10259 --cert-dir={d}/pki/scheduler",
        )
        self.spawn(
            "kube-proxy",
            f"--kubeconfig={inner} --proxy-mode=iptables --cluster-cidr={network.PODS} --hostname-override=node-a "
            "--conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 "
            "--iptables-min-sync-period=0s --healthz-bind-address= --metrics-bind-address=127.0.0.1:10249",
        )
        inside_api = json.dumps(["127.0.0.1", _PORT, self.api.certificate, self._tokens["admin"]])
        self.spawn_python("dns", "tests.extended.kubernetes.dns", network.DNS, inside_api)
        wait_for(self._account, 30, f"the controller manager, see {d}/log")

    def stop(self) -> None:
        """End the containers, then the daemons. The directory stays."""
        for node in self.nodes.values():
            node.kill()
        for name in reversed(list(self._children)):
            self.end(name)
        if self._sweeper is not None:
            self._sweeper.communicate()

    def end(self, name: str) -> None:
        """Kill a child."""
        child = self._children.pop(name)
        child.kill()
        child.wait()

    def spawn(self, program: str, words: str) -> None:
        """Start a child in the cluster's network, named after its program."""
        self._child(program, [str(self._bin / program), *words.split()])

    def spawn_python(self, name: str, module: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        return self._child(name, [sys.executable, "-m", module, *words], **options)

    def _child(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PATH": f"{self._bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": str(self._lib),
            "XTABLES_LIBDIR": str(self._lib / "xtables"),
            "XTABLES_LOCKFILE": str(self.folder / "xtables.lock"),
            "PYTHONPATH": str(_ROOT),
        }
        if command[0] == sys.executable:
            del environment["LD_LIBRARY_PATH"]
        with open(self.folder / "log" / f"{name}.log", "ab") as out:
            child = subprocess.Popen(
                [*network.inside(self._wire), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                **options,
            )
        self._children[name] = child
        return child

    def _relay(self) -> int:
        with socket.socket() as listening:  # a socket of our own namespace
            listening.bind(("127.0.0.1", 0))
            listening.listen(64)
            descriptor = listening.fileno()
            words = [str(descriptor), "127.0.0.1", str(_PORT)]
            self.spawn_python("relay", "tests.extended.kubernetes.relay", *words, pass_fds=[descriptor])
            return int(listening.getsockname()[1])

    def _keys(self) -> None:
        command = ["openssl", "genrsa", "-out", str(self.folder / "pki/sa.key"), "2048"]
        subprocess.run(command, check=True, capture_output=True)
        groups = {"admin": "system:masters"}
        lines = [f'{token},{user},{user},"{groups.get(user, "")}"' for user, token in self._tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        (self.folder / "tokens.csv").chmod(0o600)

    def _config(self, user: str, token: str, port: int) -> str:
        server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": f"{self.folder}/pki/apiserver.crt"}
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": user}}],
            "current-context": "cluster",
        }
        return json.dumps(value)  # JSON is valid YAML

    def _ready(self) -> bool:
        for name, child in self._children.items():
            assert child.poll() is None, f"{name} ended with {child.returncode}, see {self.folder}/log"
        try:
            return self.api.get("/readyz") == "ok"
        except (OSError, ApiError):
            return False

    def _account(self) -> bool:
        """Return whether pods can be created: the controllers have given the namespace its service account."""
        try:
            return bool(self.api.get("/api/v1/namespaces/default/serviceaccounts/default").get("secrets"))
        except (OSError, ApiError):
            return False


class LocalNode:
    """A node of the cluster, with the operations of a test that breaks it."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self.folder = Path(settings.folder)
        self._child: subprocess.Popen[bytes] | None = None
        self._runtime = Runtime(settings.runc, self.folder / "runc")

    def start(self) -> None:
        """Start the kubelet (again). The node is ready on return."""
        wire, name = self._cluster._wire, self._settings.name
        network.remove(wire, self._links())  # links of a previous start
        words = json.dumps(asdict(self._settings))
        self._child = self._cluster.spawn_python(name, "tests.extended.kubernetes.kubelet", words)
        wait_for(self._ready, 30, f"node {name}, see {self._cluster.folder}/log/{name}.log")

    @property
    def name(self) -> str:
        return self._settings.name

    def kill_container(self, uid: str) -> None:
        """Kill all processes in a pod's only container with SIGKILL."""
        self._runtime.kill(self._container(uid))

    def run_in(self, uid: str, command: Sequence[str]) -> int:
        """Run a command in a pod's only container. Return its exit code."""
        return self._runtime.run_in(self._container(uid), command, scaled(10))

    def lose(self) -> None:
        """Lose the node as in a power failure: no packet leaves it any more, then all of its processes are killed."""
        wire = self._cluster._wire
        network.cut(wire, self._links())
        self.kill()

    def kill(self) -> None:
        """Kill its kubelet and all processes in its containers."""
        if self._child is not None:
            self._cluster.end(self._settings.name)
            self._child = None
        self._runtime.remove_all()

    def _links(self) -> list[str]:
        return network.links(self._cluster._wire, f"pod{self._settings.number}x")

    def _container(self, uid: str) -> str:
        return max(n for n in self._runtime.names() if n.startswith(uid))

    def _ready(self) -> bool:
        assert self._child is not None
        assert self._child.poll() is None, f"the kubelet ended with {self._child.returncode}"
        try:
            status = self._cluster.api.get(f"/api/v1/nodes/{self._settings.name}")["status"]
        except ApiError:
            return False
        return ready_word(status) == "True"


def _sweeper(runc: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends the containers when this one has ended.

    Our other children die with us, but containers have no parent.
    """
    script = 'read _; for s in "$1"/*/runc/*; do "$0" --root "${s%/*}" delete --force "${s##*/}"; done 2>/dev/null'
    return subprocess.Popen(
        ["sh", "-c", script, runc, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def image_environment() -> dict[str, str]:
    """Return the environment variables of IMAGE."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(_ROOT),
        "HOME": "/tmp",
        "PWD": str(_ROOT),
        env.TIME_SCALE: f"{env.time_scale():g}",
    }


def _image_paths() -> list[str]:
    """Return the paths of this Python, its environment, the trainers' one and this source, without paths inside others."""
    wanted = {sys.prefix, sys.base_prefix, str(_ROOT), sysconfig.get_path("purelib")}
    if python := env.read(TRAINERS_PYTHON):
        wanted.add(str(Path(python).parents[1]))
    outer = [p for p in wanted if not any(p != q and p.startswith(q + "/") for q in wanted)]
    return sorted(p for p in outer if not p.startswith("/usr/") and p != "/usr")


@contextmanager
def cluster(
    folder: Path, nodes: int = 1, node_grace: float = 5.0, kind: type[Cluster] = Cluster, **options: Any
) -> Iterator[Cluster]:
    """Run a cluster in `folder`, which must not exist or be empty, with nodes node-a, node-b ...

    A node that is silent for `node_grace` seconds (scaled) counts as lost. `options` are those of `add_node`.
    """
    made = kind(folder, scaled(node_grace))
    try:
        made.start()
        for i in range(nodes):
            made.add_node(f"node-{chr(ord('a') + i)}", **options)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)
