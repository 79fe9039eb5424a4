"""A real Slurm cluster (cluster.py) whose nodes are hosts: own address, name, boot id, process ids; power and cables.

A node is a network namespace on a bridge, with namespaces for names, mounts and processes. Files are shared, as on a
cluster. The controller and the submitting processes are on the bridge's side. Needs root. Outside its folder it makes
only namespaces and links with names and a subnet of its own, and removes them.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from tests.extended.slurm.cluster import SlurmCluster, end, running
from tests.extended.slurm.cluster import missing as missing_programs
from tests.scenario import networks
from tests.util import scaled, wait_for

_NOTICES = 8.0  # seconds in which Slurm may detect by itself that a node is back
# Stand-in for a machine's init: it ends only by a kill, with all processes of the node. The boot id is the node's own.
# Names come from a file alone, as each look-up of an address would wait for a name server that can't be reached.
_NODE = """
mount --bind {dir}/hosts /etc/hosts
mount --bind {dir}/nsswitch.conf /etc/nsswitch.conf
mount --bind {dir}/boot-{node} /proc/sys/kernel/random/boot_id
hostname {node}
slurmd -D -N {node} -f {dir}/slurm.conf &
while :; do wait -n || sleep 0.2; done
"""


def missing() -> str:
    """Return a sentence about what is missing on this machine, or '' if a cluster can be started."""
    return networks.missing() or missing_programs()


class SlurmHosts(SlurmCluster):
    """A cluster of nodes n1, n2, ...

    `stock`: Slurm's own times, so that a requeued job waits 121 s and a silent node is noticed after 300 s.
    """

    def __init__(self, folder: Path, nodes: int, *, stock: bool = False) -> None:
        super().__init__(folder, nodes, stock=stock)
        self.tag = f"tf{secrets.token_hex(3)}"
        self._subnet = _free_subnet()
        self._inits: dict[str, subprocess.Popen[bytes]] = {}  # inits of the nodes that have power
        self.login = self._controller_address = f"{self._subnet}.1"  # address of the submitting processes

    @property
    def nodes(self) -> list[str]:
        return [f"n{i + 1}" for i in range(self._nodes)]

    def address(self, node: str) -> str:
        return f"{self._subnet}.{10 + int(node[1:])}"

    def cut(self, node: str) -> None:
        """Unplug the node's cable: it runs on, but no packet reaches or leaves it."""
        networks.ip("link", "set", self._link(node), "down")

    def mend(self, node: str) -> None:
        networks.ip("link", "set", self._link(node), "up")

    def lose_power(self, node: str) -> None:
        """Cut the node's power: no connection is closed."""
        self.cut(node)
        init = self._inits.pop(node)
        _kill_node(init)

    def power_on(self, node: str) -> None:
        """Boot the node again, with another boot id."""
        self.mend(node)
        self._start_node(node)

    def wait_until_up(self, node: str) -> None:
        """Wait until Slurm accepts work for the node."""
        states = ("idle", "mixed", "allocated")
        wait_for(lambda: self.run("sinfo", "-h", "-n", node, "-o", "%T") in states, 60, f"{node} to be good again")

    def settle(self, node: str, seconds: float = 120.0) -> None:
        """Wait until Slurm accepts work for the node and it is idle.

        Slurm may take minutes to learn of a node that was away. As an administrator would, this sets such a node down
        and resumes it.
        """
        asked = time.monotonic()
        deadline = asked + scaled(seconds)
        while (state := self.run("sinfo", "-h", "-n", node, "-o", "%T")) != "idle":
            assert time.monotonic() < deadline, f"{node} is {state} after {scaled(seconds):g} s"
            if time.monotonic() > asked + _NOTICES:
                self.set_down(node)
                self.resume(node)
                asked = time.monotonic()
            time.sleep(0.5)

    def kill_slurmd(self, node: str) -> None:
        """Kill slurmd alone: the processes that it has started run on without supervision."""
        self.inside(node, "kill", "-9", self.inside(node, "pgrep", "-x", "slurmd").split()[0])

    def restart_slurmd(self, node: str) -> None:
        """Start slurmd again after `kill_slurmd`, without a boot of the node."""
        command = f"slurmd -N {node} -f {self.environ['SLURM_CONF']}"  # a daemon, which outlives this command
        self.inside(node, "bash", "-c", command)

    def kill(self, node: str, pid: int) -> None:
        """Send SIGKILL to a process of the node, by its id there."""
        self.inside(node, "kill", "-9", str(pid))

    def restart_controller(self) -> None:
        """Restart slurmctld, which keeps its jobs."""
        end(self._children[1])
        self._children[1] = self._spawn("slurmctld", "-D", "-f", self.environ["SLURM_CONF"])
        self._children.pop()
        self._await_controller()

    def inside(self, node: str, *command: str) -> str:
        """Return the output of a command on that node."""
        child = Path(f"/proc/{self._inits[node].pid}/task/{self._inits[node].pid}/children").read_text().split()[0]
        done = subprocess.run(
            ["nsenter", f"--target={child}", "--pid", "--mount", "--net", "--uts", *command],
            capture_output=True,
            text=True,
            timeout=scaled(20),
        )
        assert done.returncode == 0, f"{' '.join(command)} on {node}: {done.stderr}"
        return done.stdout.strip()

    def start(self) -> None:
        networks.ip("link", "add", self.tag, "type", "bridge")
        networks.ip("addr", "add", f"{self._subnet}.1/24", "dev", self.tag)
        networks.ip("link", "set", self.tag, "up")
        for node in self.nodes:
            space = f"{self.tag}-{node}"
            networks.ip("netns", "add", space)
            networks.ip("link", "add", self._link(node), "type", "veth", "peer", "name", "eth0", "netns", space)
            networks.ip("link", "set", self._link(node), "master", self.tag, "up")
            networks.ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            networks.ip("-n", space, "link", "set", "lo", "up")
            networks.ip("-n", space, "link", "set", "eth0", "up")
        self.folder.mkdir(exist_ok=True)
        names = [f"{self.address(node)} {node}" for node in self.nodes]
        here = f"{self._subnet}.1 {os.uname().nodename}"
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", here, *names, ""]))
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        super().start()

    def stop(self) -> None:
        for init in self._inits.values():  # the node's processes need not report their end
            _kill_node(init)
        self._inits = {}
        try:
            for child in self._children:  # SIGTERM would make the controller wait for nodes
                child.kill()
                child.wait()
        finally:
            for node in self.nodes:
                subprocess.run(["ip", "netns", "del", f"{self.tag}-{node}"], capture_output=True)
                subprocess.run(["ip", "link", "del", self._link(node)], capture_output=True)
            subprocess.run(["ip", "link", "del", self.tag], capture_output=True)

    def _link(self, node: str) -> str:
        return f"{self.tag}-{node}"

    def _addresses(self) -> dict[str, str]:
        return {node: f"NodeHostname={node} NodeAddr={self.address(node)} Port=6818" for node in self.nodes}

    def _start_node(self, node: str) -> None:
        (self.folder / f"boot-{node}").write_text(f"{uuid.uuid4()}\n")
        script = _NODE.format(dir=self.folder, node=node)
        space = f"--net=/run/netns/{self.tag}-{node}"
        shell = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        self._inits[node] = self._spawn("nsenter", space, *shell)


def slurm_hosts(folder: Path, nodes: int = 4, *, stock: bool = False) -> AbstractContextManager[SlurmHosts]:
    return running(SlurmHosts(folder, nodes, stock=stock))


def _kill_node(init: subprocess.Popen[bytes]) -> None:
    """Kill a node: its first process ends with `unshare`, and all others with that."""
    child = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
    for pid in (*map(int, child), init.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    init.wait()
    for pid in child:
        wait_for(lambda pid=pid: not Path("/proc", pid).exists(), 10, "the end of a node's processes")  # type: ignore[misc]


def _free_subnet() -> str:
    taken = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True).stdout
    while True:
        subnet = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        if f" {subnet}." not in taken:
            return subnet
