"""Cost of faults on a real Slurm: docs/slurm.md#when-something-fails.

    python -m benchmarks.evidence.slurm_faults [FAULT ...] [--repeat N] [--out docs/bench/slurm.json]
    python -m benchmarks.evidence.slurm_faults --groups 2 --nodes-per-group 2 power
    python -m benchmarks.evidence.slurm_faults --groups 4 --goodput 30 [--every 60] [--least 0.95] [--out FILE]

Groups train on nodes that are network namespaces of this machine, under a Slurm with its default times (SlurmdTimeout
300 s, cred_expire 120 s). Two nodes are to spare, one of them for the lighthouse. One fault after the other strikes the
same job. All parameters of all groups are compared at the end. The program needs root and Slurm's daemons.

With --goodput, the nodes of the groups lose their power in turn, without notice, for so many minutes. Each boots again
after half the time to the next loss. Goodput is that of ``torchft_x report`` (docs/operate.md): committed batches
against those of all groups at their usual step, from the first commit to the last. The exit code is 0 if

* goodput was at least --least;
* every group was back before the next loss, and none was given up;
* all parameters of all groups are bit-equal;
* the job ended when it was cancelled, and no process or namespace is left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.evidence.cost import drops, median_and_worst, pause, whole_at
from tests.events import commits, workers
from tests.extended.slurm.hosts import SlurmHosts, missing, slurm_hosts
from tests.extended.slurm.job import SlurmFtJob, on
from tests.journeys.jobs import SMALL
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.submit import cancel
from torchft_x.observe.run.fold import read_run

ROOT = Path(__file__).resolve().parents[2]

PACE = 0.1  # seconds of a step
CALM = 20.0  # seconds of undisturbed training before the first loss, for comparison
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
        self._whole("", time.time())
        began, self.back = time.time(), 0.0
        struck = self.faults[kind]()
        if kind == "slurmd":  # only Slurm notices, after minutes, and the job needs no recovery
            time.sleep(20.0)
        whole = self._whole(struck, began)
        time.sleep(2.0)
        found = {
            "fault": kind,
            "pause": self._pause(struck, began),
            "whole": round(whole - max(began, self.back), 1),
            "lost": len(drops(self.job.events(), self._others(struck), began)),
        }
        while self.repairs:
            self.repairs.pop()()
        return found

    def lose_for(self, group: str, seconds: float) -> dict[str, Any]:
        """Cut the power of a group's node for half of these seconds, and return the costs at their end."""
        began, node = time.time(), self.job.node(f"trainer/{group}")
        self.hosts.lose_power(node)
        row: dict[str, Any] = {"group": group, "node": node, "whole": None, "load": round(os.getloadavg()[0], 1)}
        back = False
        while (now := time.time()) < began + seconds:
            if row["whole"] is None and (whole := whole_at(self.job.events(), group, self.groups, began)) is not None:
                row["whole"] = round(whole - began, 1)
            if not back and now > began + seconds / 2:
                self.hosts.power_on(node)
                self.hosts.settle(node, seconds / 2)
                back = True
            time.sleep(_POLL * 4)
        row["pause"] = self._pause(group, began, began + seconds)
        print(json.dumps(row), flush=True)
        return row

    def rate(self, since: float, until: float) -> float:
        """Return the committed batches per second."""
        made = {int(e["step"]): int(e["participants"]) for e in commits(self.job.events()) if since < e["t"] <= until}
        return sum(made.values()) / (until - since)

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

    def _whole(self, struck: str, since: float) -> float:
        """Wait until all groups commit together again, and return the time. Raise SystemExit after LIMIT."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if (whole := whole_at(self.job.events(), struck, self.groups, since)) is not None:
                return whole
            time.sleep(_POLL)
        raise SystemExit(f"not whole after {LIMIT:g} s:\n{self.job.output()}")

    def _pause(self, struck: str, since: float, until: float = float("inf")) -> float:
        """Return the survivors' longest time between two commits, in seconds."""
        return round(max(pause(self.job.events(), g, since, until) for g in self._others(struck)), 2)

    def _others(self, struck: str) -> list[str]:
        return [str(g) for g in range(self.groups) if str(g) != struck]

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


@contextmanager
def bench(folder: Path, groups: int, nodes: int = 1, **options: Any) -> Iterator[Bench]:
    """Start a cluster and a job on it; `options` as of `SlurmFtJob.submit`."""
    with slurm_hosts(folder / "c", groups * nodes + 2, stock=True) as hosts:
        on(hosts)
        job = SlurmFtJob(hosts, folder, groups)
        args = ["--steps", "1000000", "--pace", str(PACE), "--dump-params", str(folder / "dumps"), *SMALL]
        job.submit(args, retries=1000, nodes=nodes, **options)
        yield Bench(hosts, job, groups)


def one_job(folder: Path, kinds: list[str], groups: int, nodes: int) -> list[dict[str, Any]]:
    """Do every fault once, and return their costs."""
    found = []
    with bench(folder, groups, nodes, cfg={"start_deadline": str(START_DEADLINE)}) as made:
        for kind in kinds:
            found.append(made.measure(kind))
            print(json.dumps(found[-1] | {"load": os.getloadavg()[0]}), flush=True)
        made.hosts.run("scancel", "--me")
    return found


def parameters(folder: Path) -> str:
    """Return exit code and last line of check_params.py."""
    command = [sys.executable, "-m", "benchmarks.evidence.check_params", str(folder / "dumps")]
    done = subprocess.run([*command, "--run", str(folder / "run")], cwd=ROOT, capture_output=True, text=True)
    return f"{done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return median and worst of each fault's costs."""
    kinds = {kind: [row for row in rows if row["fault"] == kind] for kind in dict.fromkeys(r["fault"] for r in rows)}
    figures = ("pause", "whole", "lost")
    return [
        {"fault": kind, "n": len(mine)} | {name: median_and_worst([row[name] for row in mine]) for name in figures}
        for kind, mine in kinds.items()
    ]


def goodput(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Lose node after node. Return the record, and a sentence for each requirement that was not met."""
    with bench(folder, args.groups) as made:
        job = made.job
        job.wait_until_training(args.groups, 120)
        calm = time.time()
        time.sleep(CALM)
        calm_rate = made.rate(calm, calm + CALM)
        turns = range(max(1, round(args.goodput * 60 / args.every)))
        losses = [made.lose_for(str(number % args.groups), args.every) for number in turns]
        rate = made.rate(calm + CALM, time.time())
        cancel(job.run_dir, job.controller)
        job.wait_for(lambda: not made.hosts.run("squeue", "-h"), 90, "the end of the job")
        given_up = store.lost_groups(job.run_dir)
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    left = [*map(str, made.hosts.processes()), *(name for name in spaces if name.startswith(made.hosts.tag))]
    run = read_run(job.run_dir)
    if run is None or run.goodput is None or run.trained is None:
        raise AssertionError(f"nothing can be said of the run in {job.run_dir}")
    elapsed = run.trained[1] - run.trained[0] + run.goodput.usual  # the first step counts as a usual one
    found = {
        "losses": losses,
        "calm": round(calm_rate, 2),
        "rate": round(rate, 2),
        "given_up": given_up,
        "left": left,
        "parameters": parameters(folder),
        "goodput": round(run.goodput.share, 4),
        "goodput_of_steps": round(run.steps * run.goodput.usual / elapsed, 4),
        "steps": run.steps,
        "usual_step": round(run.goodput.usual, 4),
        "elapsed": round(elapsed, 1),
        "dropped": run.dropped,
    }
    for name in ("whole", "pause"):
        values = [row[name] for row in losses if row[name] is not None]
        found[name] = median_and_worst(values) if values else None
    wrong = [f"group {x['group']} was not back before the next loss" for x in losses if x["whole"] is None]
    wrong += [f"group {group} was given up: {why}" for group, why in given_up.items()]
    wrong += [f"{one} was left behind" for one in left]
    if run.goodput.share < args.least:
        wrong.append(f"goodput is {run.goodput.share:.1%}, less than {args.least:.1%}")
    if not found["parameters"].startswith("0:"):
        wrong.append(found["parameters"])
    return found, wrong


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("faults", nargs="*")
    p.add_argument("--groups", type=int, default=3)
    p.add_argument(
        "--nodes-per-group", type=int, default=1, help="with several, kills of single processes are left out"
    )
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--goodput", type=float, metavar="MINUTES", help="lose node after node, and measure the goodput")
    p.add_argument("--every", type=float, default=60.0, help="seconds between two losses")
    p.add_argument("--least", type=float, default=0.95, help="goodput that is enough")
    p.add_argument("--out", type=Path, help="the record, as JSON")
    args = p.parse_args()
    if args.every < 30:
        p.error("--every must be 30 at least: a node takes its time to boot")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    if sentence := missing():
        raise SystemExit(sentence)
    rows: list[dict[str, Any]] = []
    checks: list[str] = []
    several = args.nodes_per_group > 1
    left_out = ("process", "supervisor") if several else ("power of the first node",)
    known = [kind for kind in Bench(None, None, 0).faults if kind not in left_out]  # type: ignore[arg-type]
    setting = {"groups": args.groups, "nodes": args.nodes_per_group, "pace": PACE}
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
            if args.goodput:
                found, wrong = goodput(Path(name), args)
                result = {**setting, "minutes": args.goodput, "every": args.every, "wrong": wrong, **found}
                print(json.dumps({name: value for name, value in found.items() if name != "losses"}, indent=1))
                print("\n".join(wrong) or "all is well")
            else:
                wrong = []
                rows += one_job(Path(name), args.faults or known, args.groups, args.nodes_per_group)
                checks.append(parameters(Path(name)))
                print(checks[-1], flush=True)
                load = os.getloadavg()[0]
                result = {**setting, "load": load, "table": table(rows), "runs": rows, "parameters": checks}
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
