"""A real Slurm cluster for tests: munged, slurmctld and several slurmd as children, all in one private directory.

Every node is this host (another port, the same name and address), so that no privileges are needed. Nothing is written
outside the directory. Ports are free ones, so that several clusters may run side by side. hosts.py has nodes that are
hosts.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.util import scaled, wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
_PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # the daemons' folder may not be on the PATH

_CONFIG = """
ClusterName=mini
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo={cred}socket={dir}/run/munge.sock
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd.%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=1
JobRequeue=1
CompleteWait=0
SchedulerType=sched/backfill
{times}AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PropagateResourceLimits=NONE
GresTypes=gpu
{nodes}
PartitionName=main Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
_QUICK = """SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=5
BatchStartTimeout=10
UnkillableStepTimeout=10
MinJobAge=3600
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
"""
# cgroup/v1 accepts anything that is mounted there; the other plugins don't start in a container
_CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


def missing() -> str:
    """Return a sentence about what is missing on this machine, or '' if a cluster can be started."""
    absent = [p for p in _PROGRAMS if shutil.which(p, path=_PATH) is None]
    if absent:
        return f"No {', '.join(absent)} on this machine; apt-get install --no-install-recommends {_PACKAGES}."
    return ""


class SlurmCluster:
    """A running cluster: owns the daemons and their folder. `environ` directs every Slurm client to it."""

    def __init__(self, folder: Path, nodes: int, *, stock: bool = False) -> None:
        self.folder = folder  # private
        self._stock = stock  # use Slurm's own times, also those for which tests would wait long
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        self._nodes = nodes
        self._children: list[subprocess.Popen[bytes]] = []  # in the order of their start

    def run(self, *command: str) -> str:
        """Return the output of a Slurm client. Fail with its error."""
        done = self.try_run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def try_run(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**os.environ, **(env or {}), **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(timeout),
        )

    def states(self, job: str) -> dict[str, str]:
        """Return the state of each component of a job, by its name (``trainer-0``), finished ones included."""
        lines = self.run("squeue", "-h", "-t", "all", "-o", "%i|%j|%T").splitlines()
        rows = [line.split("|") for line in lines]
        return {name: state for number, name, state in rows if number.split("+")[0] == job}

    def exit_code(self, job: str) -> int:
        """Return the exit code of the batch script, once it has ended."""
        found = re.search(r"ExitCode=(\d+):", self.run("scontrol", "show", "job", "-o", job))
        assert found is not None
        return int(found[1])

    def set_down(self, node: str) -> None:
        """Set a node down, as an administrator does with a broken one: Slurm ends all jobs on it."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def resume(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def processes(self) -> list[int]:
        """Return the pids of this cluster's daemons and of the processes of its jobs."""
        mark = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return [pid for pid in found if pid != os.getpid()]

    def processes_and_logs(self) -> str:
        """Return what this cluster's processes wait for, and the ends of the daemons' logs."""
        pids = ",".join(map(str, self.processes()))
        rows = subprocess.run(
            ["ps", "-o", "pid,ppid,stat,etime,wchan:20,args", "-p", pids], capture_output=True, text=True
        )
        logs = [
            f"--- {f.name}\n" + "".join(f.open().readlines()[-15:]) for f in sorted((self.folder / "log").iterdir())
        ]
        return rows.stdout + "".join(logs)

    # --- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("state", "log", "run", "munge", *(f"spool/n{i + 1}" for i in range(self._nodes))):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge/key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self._configure()
        d = self.folder
        files = (("socket", d / "run/munge.sock"), ("pid-file", d / "run/munged.pid"), ("key-file", key))
        logs = (("log-file", d / "log/munged.log"), ("seed-file", d / "munge/seed"))
        self._spawn("munged", "-F", "--force", "--num-threads=2", *(f"--{k}={v}" for k, v in (*files, *logs)))
        wait_for((d / "run/munge.sock").exists, 10, "munged")
        conf = self.environ["SLURM_CONF"]
        self._spawn("slurmctld", "-D", "-c", "-f", conf)
        # If the controller isn't up, slurmd retries only after a second.
        self._await_controller()
        for i in range(self._nodes):
            self._start_node(f"n{i + 1}")
        wait_for(self._all_idle, 20, f"{self._nodes} idle nodes, see {d}/log")

    def stop(self) -> None:
        """Cancel the jobs, then end the daemons, and kill the remaining processes."""
        self.try_run("scancel", "--user", getpass.getuser())
        try:
            wait_for(lambda: not self.try_run("squeue", "-h").stdout.strip(), 15, "the end of the jobs")
        finally:
            for child in self._children[1:2]:  # slurmctld first, while it can reach the others
                end(child)
            for pid in self.processes():
                if pid not in {c.pid for c in self._children}:
                    kill(pid)
            for child in reversed(self._children):
                end(child)

    def _await_controller(self) -> None:
        wait_for(lambda: "is UP" in self.try_run("scontrol", "ping").stdout, 15, f"slurmctld, see {self.folder}/log")

    def _start_node(self, node: str) -> None:
        self._spawn("slurmd", "-D", "-N", node, "-f", self.environ["SLURM_CONF"])

    def _all_idle(self) -> bool:
        return self.try_run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * self._nodes

    def _configure(self) -> None:
        host = socket.gethostname().split(".")[0]
        port = _free_ports(1)[0]
        addresses = self._addresses()
        nodes = "\n".join(
            f"NodeName={name} {address} CPUs=8 RealMemory=16000 Gres=gpu:2 State=UNKNOWN"
            for name, address in addresses.items()
        )
        text = _CONFIG.format(
            host=host,
            address=self._controller_address,
            port=port,
            user=getpass.getuser(),
            dir=self.folder,
            nodes=nodes,
            count=self._nodes,
            cred="" if self._stock else "cred_expire=5,",
            times="" if self._stock else _QUICK,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(_CGROUP)
        # Any two character devices serve as GPUs: Slurm only counts them and names them in CUDA_VISIBLE_DEVICES.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")

    _controller_address = "127.0.0.1"

    def _addresses(self) -> dict[str, str]:
        """Return each node's fields of slurm.conf that say how it is reached."""
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(self._nodes)
        return {f"n{i + 1}": f"NodeHostname={host} NodeAddr=127.0.0.1 Port={p}" for i, p in enumerate(ports)}

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "log" / f"{command[0]}-{len(self._children)}.out", "wb") as out:
            child = subprocess.Popen(
                command,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child


C = TypeVar("C", bound=SlurmCluster)


@contextmanager
def running(cluster: C) -> Iterator[C]:
    """Start the cluster. Its folder must not exist or be empty, and have a short path, as it contains a socket."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(scaled(5))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
