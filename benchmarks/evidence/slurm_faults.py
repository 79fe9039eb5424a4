"""Cost of faults on a real Slurm: docs/slurm.md#when-something-fails.

    python -m benchmarks.evidence.slurm_faults [FAULT ...] [--repeat N] [--out docs/bench/slurm.json]
    python -m benchmarks.evidence.slurm_faults --groups 2 --nodes-per-group 2 power

Three groups train on five nodes that are network namespaces of this machine, under a Slurm with its default times
(SlurmdTimeout 300 s, cred_expire 120 s). One fault after the other strikes the same job. All parameters of all groups
are compared at the end. The program needs root and Slurm's daemons.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.events import commits, workers
from tests.extended.slurm.hosts import SlurmHosts, missing, slurm_hosts
from tests.extended.slurm.job import SlurmFtJob, on
from tests.journeys.jobs import SMALL

ROOT = Path(__file__).resolve().parents[2]

GROUPS = 3
PACE = 0.1  # seconds of a step
LIMIT = 180.0  # seconds for a job to be whole again
FULL = 140.0  # seconds for which no node is free: longer than a lease
URGENT = 45  # seconds that the preempting job lasts
START_DEADLINE = 30  # seconds
_POLL = 0.05  # seconds


class Bench:
    """One job and its cluster, with the faults that may strike it."""

    def __init__(self, hosts: SlurmHosts, job: SlurmFtJob, groups: int) -> None:
        self.hosts = hosts
        self.job = job
        self.groups = groups
        self.back = 0.0  # unix seconds at which a node was free again, if the job had to wait for one
        self.repairs: list[Callable[[], object]] = []  # repairs of the cluster that the next fault needs
        self.faults: dict[str, Callable[[], str]] = {
            "process": self._process,
            "supervisor": self._supervisor,
            "slurmd": self._slurmd,
            "node down": self._down,
            "power": self._power,
            "power of the first node": self._power_first,
            "partition": self._partition,
            "lighthouse's node": self._lighthouse,
            "full cluster": self._full,
            "preempted": self._preempted,
            "black hole": self._black_hole,
            "controller restarted": self._controller,
            "array requeued": self._requeued,
        }

    def measure(self, kind: str) -> dict[str, Any]:
        """Strike, wait until all groups train together again, repair the cluster, and return the costs.

        `pause` is the survivors' longest time between two commits in seconds. `whole` is the time until all groups
        train together again, in seconds from the fault or from a node's return. `lost` is the number of the survivors'
        gradients that were thrown away.
        """
        self._whole(time.time())
        began, self.back = time.time(), 0.0
        struck = self.faults[kind]()
        if kind == "slurmd":  # only Slurm notices, after minutes, and the job needs no recovery
            time.sleep(20.0)
        whole = self._whole(began, struck)
        time.sleep(2.0)
        survivors = [str(g) for g in range(self.groups) if str(g) != struck]
        found = {
            "fault": kind,
            "pause": round(max(self._pause(g, began) for g in survivors), 2),
            "whole": round(whole - max(began, self.back), 1),
            "lost": self._lost(survivors, began),
        }
        while self.repairs:
            self.repairs.pop()()
        return found

    # --- faults: each returns the group that it hits, or '' ----------------------------------------------------------

    def _process(self) -> str:
        worker = next(w for w in workers(self.job.events()) if w.group == "1")
        self.hosts.kill(self.job.node("trainer/1"), worker.pid)
        return "1"

    def _supervisor(self) -> str:
        events = [e for e in self.job.events() if e.get("role") == "supervisor" and e.get("group") == "1"]
        self.hosts.kill(self.job.node("trainer/1"), int(events[-1]["pid"]))
        return "1"

    def _slurmd(self) -> str:
        node = self._node()
        self.hosts.kill_slurmd(node)
        self.repairs.append(lambda: self.hosts.restart_slurmd(node))
        return ""

    def _down(self) -> str:
        node = self._node()
        self.hosts.set_down(node)
        self.repairs.append(lambda: self._resume(node))
        return "1"

    def _power(self) -> str:
        return self._lose(self._node())

    def _power_first(self) -> str:
        return self._lose(self.job.node("trainer/1"))

    def _lose(self, node: str) -> str:
        self.hosts.lose_power(node)
        self.repairs.append(lambda: self._boot(node))
        return "1"

    def _partition(self) -> str:
        node = self._node()
        self.hosts.cut(node)
        self.repairs.append(lambda: self._mend(node))
        return "1"

    def _lighthouse(self) -> str:
        """Cut the power of the node with the serving lighthouse and a group."""
        group, node = self._serving()
        self.hosts.lose_power(node)
        self.repairs.append(lambda: self._boot(node))
        return group

    def _full(self) -> str:
        """Cut the power of the node with the serving lighthouse while no other node is free."""
        spare = self._spare()
        for node in spare:
            self.hosts.set_down(node)
        group = self._lighthouse()
        time.sleep(FULL)
        for node in spare:
            self._resume(node)
        self.back = time.time()
        return group

    def _preempted(self) -> str:
        """Preempt the group beside the serving lighthouse by another user's job while no other node is free."""
        spare, (group, node) = self._spare(), self._serving()
        for one in spare:
            self.hosts.set_down(one)
            self.repairs.append(lambda one=one: self._resume(one))  # type: ignore[misc]
        words = ["--exclusive", "--job-name=urgent", f"--nodelist={node}", "--chdir=/tmp", "--output=/dev/null"]
        self.hosts.run("sbatch", *words, "--wrap", f"sleep {URGENT}")
        self.hosts.run("scontrol", "requeue", self.job.rows()[f"trainer/{group}"].job)
        self.back = time.time() + URGENT
        return group

    def _black_hole(self) -> str:
        """Move group 1 to a node on which no process starts."""
        node, spare = self._node(), self._spare()
        hang = self.hosts.folder / "hang"
        hang.write_text("#!/bin/sh\nexec sleep 10000\n")
        hang.chmod(0o755)
        srun = shutil.which("srun") or ""
        for one in spare:
            self.hosts.inside(one, "mount", "--bind", str(hang), srun)
            self.repairs.append(lambda one=one: self.hosts.inside(one, "umount", srun))  # type: ignore[misc]
        self.hosts.set_down(node)
        while self.job.rows()["trainer/1"].nodes[-1:] not in [(one,) for one in spare]:
            time.sleep(_POLL * 10)
        self._resume(node)
        return "1"

    def _controller(self) -> str:
        self.hosts.restart_controller()
        return ""

    def _requeued(self) -> str:
        last = str(self.groups - 1)
        self.hosts.run("scontrol", "requeue", self.job.rows()[f"trainer/{last}"].array)
        return last

    # --- observations ------------------------------------------------------------------------------------------------

    def _whole(self, since: float, struck: str = "") -> float:
        """Wait until all groups commit together again, `struck` with a process that is ready after `since`.

        Return the time of that commit, in unix seconds. Raise SystemExit after LIMIT.
        """
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            after = since if not struck else self._joined(struck, since)
            for e in commits(self.job.events(), group=struck or None):
                if float(e["t"]) > after and e.get("participants") == self.groups:
                    return float(e["t"])
            time.sleep(_POLL)
        raise SystemExit(f"not whole after {LIMIT:g} s:\n{self.job.output()}")

    def _joined(self, group: str, since: float) -> float:
        """Return the unix time of the group's first `joined` event after `since`, or infinity if there is none."""
        joined = (e for e in self.job.events() if e.get("event") == "joined" and str(e.get("group")) == group)
        return min((float(e["t"]) for e in joined if float(e["t"]) > since), default=float("inf"))

    def _pause(self, group: str, since: float) -> float:
        """Return the group's longest time between two commits after `since`, in seconds."""
        times = [float(e["t"]) for e in commits(self.job.events(), group=group) if float(e["t"]) > since - 1.0]
        return max((b - a for a, b in pairwise(times)), default=float("inf"))

    def _lost(self, survivors: list[str], since: float) -> int:
        """Return the number of the survivors' gradients that were thrown away after `since`."""
        events = self.job.events()
        return sum(
            e.get("event") == "drop" and str(e.get("group")) in survivors and float(e["t"]) > since for e in events
        )

    def _node(self) -> str:
        """Return the last node of group 1, which most faults hit."""
        return self.job.rows()["trainer/1"].nodes[-1]

    def _serving(self) -> tuple[str, str]:
        """Return the group beside the serving lighthouse, and its node."""
        address = (self.job.run_dir / "lighthouse").read_text()
        nodes = ((str(g), self.job.node(f"trainer/{g}")) for g in range(self.groups))
        return next((g, node) for g, node in nodes if f"//{self.hosts.address(node)}:" in address)

    def _spare(self) -> list[str]:
        """Return the nodes that the job does not use."""
        used = {node for row in self.job.rows().values() for node in row.nodes}
        return sorted(set(self.hosts.nodes) - used)

    # --- repairs -----------------------------------------------------------------------------------------------------

    def _boot(self, node: str) -> None:
        self.hosts.power_on(node)
        self.hosts.settle(node)

    def _mend(self, node: str) -> None:
        self.hosts.mend(node)
        self.hosts.settle(node)

    def _resume(self, node: str) -> None:
        self.hosts.resume(node)
        self.hosts.settle(node)


def one_job(kinds: list[str], groups: int, nodes: int) -> tuple[list[dict[str, Any]], str]:
    """Do every fault once. Return their costs, and exit code and output of check_params.py."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    found = []
    try:
        with slurm_hosts(folder / "c", groups * nodes + 2, stock=True) as hosts:
            on(hosts)
            job = SlurmFtJob(hosts, folder, groups)
            dumps = folder / "dumps"
            args = ["--steps", "1000000", "--pace", str(PACE), "--dump-params", str(dumps), *SMALL]
            job.submit(args, retries=100, nodes=nodes, cfg={"start_deadline": str(START_DEADLINE)})
            bench = Bench(hosts, job, groups)
            for kind in kinds:
                found.append(bench.measure(kind))
                print(json.dumps(found[-1] | {"load": os.getloadavg()[0]}), flush=True)
            hosts.run("scancel", "--me")
        check = [sys.executable, "-m", "benchmarks.evidence.check_params", str(dumps)]
        done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
        return found, f"{done.returncode}: {done.stdout.strip()}{done.stderr.strip()}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return median and worst of each fault's costs."""
    out = []
    for kind in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == kind]
        line: dict[str, Any] = {"fault": kind, "n": len(mine)}
        for name in ("pause", "whole", "lost"):
            values = [row[name] for row in mine]
            line[name] = {"median": round(statistics.median(values), 2), "worst": max(values)}
        out.append(line)
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("faults", nargs="*")
    p.add_argument("--groups", type=int, default=GROUPS)
    p.add_argument(
        "--nodes-per-group", type=int, default=1, help="with several, kills of single processes are left out"
    )
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    if sentence := missing():
        raise SystemExit(sentence)
    rows: list[dict[str, Any]] = []
    checks = []
    several = args.nodes_per_group > 1
    left_out = ("process", "supervisor") if several else ("power of the first node",)
    known = [kind for kind in Bench(None, None, 0).faults if kind not in left_out]  # type: ignore[arg-type]
    for _ in range(args.repeat):
        found, check = one_job(args.faults or known, args.groups, args.nodes_per_group)
        rows += found
        checks.append(check)
        print(check, flush=True)
        if args.out is not None:
            result = {
                "groups": args.groups,
                "nodes": args.nodes_per_group,
                "pace": PACE,
                "load": os.getloadavg()[0],
                "table": table(rows),
                "runs": rows,
            }
            args.out.write_text(json.dumps({**result, "parameters": checks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
