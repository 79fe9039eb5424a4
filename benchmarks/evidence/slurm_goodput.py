"""Goodput of a job on a real Slurm that loses a node each minute: docs/slurm.md#when-something-fails.

    python -m benchmarks.evidence.slurm_goodput [--minutes 30] [--every 60] [--least 0.95] [--out docs/bench/slurm-goodput.json]

Four groups and a lighthouse train on six nodes that are network namespaces of this machine, under a Slurm with its
default times (SlurmdTimeout 300 s, cred_expire 120 s). The nodes of the groups lose their power in turn, without
notice. Each boots again after half the time to the next loss, so that there is always a spare node. The program needs
root and Slurm's daemons.

Goodput is that of ``torchft_x report`` (docs/operate.md): committed batches against those of all groups at their usual
step, from the first commit to the last. The exit code is 0 if

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
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.events import commits
from tests.extended.slurm.hosts import SlurmHosts, missing, slurm_hosts
from tests.extended.slurm.job import SlurmFtJob, on
from tests.journeys.jobs import SMALL
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.submit import cancel
from torchft_x.observe.run.fold import read_run

ROOT = Path(__file__).resolve().parents[2]

GROUPS = 4
NODES = GROUPS + 2  # one for the lighthouse, and one to spare
PACE = 0.1  # seconds of a step
CALM = 20.0  # seconds of undisturbed training before the first loss, for comparison
_RETRIES = 1000
_END = 90.0  # seconds for the job to end
_POLL = 0.2  # seconds


class Run:
    """One job, and the results of the nodes that it loses."""

    def __init__(self, hosts: SlurmHosts, job: SlurmFtJob, every: float) -> None:
        self.hosts = hosts
        self.job = job
        self.every = every
        self.losses: list[dict[str, Any]] = []

    def lose(self, number: int) -> None:
        """Cut the power of a group's node, and record the recovery within the time until the next loss."""
        began, group = time.time(), str(number % GROUPS)
        node = self.job.node(f"trainer/{group}")
        self.hosts.lose_power(node)
        row: dict[str, Any] = {"group": group, "node": node, "whole": None, "load": round(os.getloadavg()[0], 1)}
        back = False
        while (now := time.time()) < began + self.every:
            if row["whole"] is None and (whole := self._whole(group, began)) is not None:
                row["whole"] = round(whole - began, 1)
            if not back and now > began + self.every / 2:
                self.hosts.power_on(node)
                self.hosts.settle(node, self.every / 2)
                back = True
            time.sleep(_POLL)
        others = [self._pause(str(g), began, began + self.every) for g in range(GROUPS) if str(g) != group]
        row["pause"] = round(max(others), 2)
        self.losses.append(row)
        print(json.dumps(row), flush=True)

    def _whole(self, group: str, since: float) -> float | None:
        """Return when all groups committed together again, the lost one with a new process; None: not yet."""
        joined = [e for e in self.job.events() if e.get("event") == "joined" and str(e.get("group")) == group]
        ready = min((float(e["t"]) for e in joined if float(e["t"]) > since), default=None)
        if ready is None:
            return None
        made = (e for e in commits(self.job.events(), group=group) if float(e["t"]) > ready)
        return next((float(e["t"]) for e in made if e.get("participants") == GROUPS), None)

    def _pause(self, group: str, since: float, until: float) -> float:
        """Return the group's longest time between two commits in that time, in seconds."""
        times = [float(e["t"]) for e in commits(self.job.events(), group=group)]
        return max((b - a for a, b in pairwise(t for t in times if since - 1.0 < t < until)), default=float("inf"))

    def rate(self, since: float, until: float) -> float:
        """Return the committed batches per second."""
        made = {int(e["step"]): int(e["participants"]) for e in commits(self.job.events()) if since < e["t"] <= until}
        return sum(made.values()) / (until - since)


def measure(folder: Path, minutes: float, every: float) -> dict[str, Any]:
    """Run the whole job, and return the record. Raise AssertionError with a sentence if a stage takes too long."""
    dumps = folder / "dumps"
    with slurm_hosts(folder / "c", NODES, stock=True) as hosts:
        on(hosts)
        job = SlurmFtJob(hosts, folder, GROUPS)
        job.submit(["--steps", "1000000", "--pace", str(PACE), "--dump-params", str(dumps), *SMALL], retries=_RETRIES)
        job.wait_until_training(GROUPS, 120)
        run = Run(hosts, job, every)
        calm = time.time()
        time.sleep(CALM)
        calm_rate = run.rate(calm, calm + CALM)
        for number in range(max(1, round(minutes * 60 / every))):
            run.lose(number)
        rate = run.rate(calm + CALM, time.time())
        cancel(job.run_dir, job.controller)
        job.wait_for(lambda: not hosts.run("squeue", "-h"), _END, "the end of the job")
        given_up = store.lost_groups(job.run_dir)
    return {
        "losses": run.losses,
        "calm": round(calm_rate, 2),
        "rate": round(rate, 2),
        "given_up": given_up,
        "left": left(hosts),
        "parameters": parameters(dumps, job.run_dir),
        **goodput(job.run_dir),
    }


def goodput(run_dir: Path) -> dict[str, Any]:
    """Return the goodput of a run, computed by the functions of ``torchft_x report``."""
    found = read_run(run_dir)
    if found is None or found.goodput is None or found.trained is None:
        raise AssertionError(f"nothing can be said of the run in {run_dir}")
    elapsed = found.trained[1] - found.trained[0] + found.goodput.usual  # the first step counts as a usual one
    return {
        "goodput": round(found.goodput.share, 4),
        "goodput_of_steps": round(found.steps * found.goodput.usual / elapsed, 4),
        "steps": found.steps,
        "usual_step": round(found.goodput.usual, 4),
        "elapsed": round(elapsed, 1),
        "dropped": found.dropped,
    }


def parameters(dumps: Path, run_dir: Path) -> str:
    """Return exit code and last line of check_params.py."""
    command = [sys.executable, "-m", "benchmarks.evidence.check_params", str(dumps), "--run", str(run_dir)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    return f"{done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


def left(hosts: SlurmHosts) -> list[str]:
    """Return the processes and namespaces of the cluster that are left after its end."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [*map(str, hosts.processes()), *(name for name in spaces if name.startswith(hosts.tag))]


def wrong(found: dict[str, Any], least: float) -> list[str]:
    """Return a sentence for each failed requirement."""
    late = [f"group {x['group']} was not back before the next loss" for x in found["losses"] if x["whole"] is None]
    failures = [*late, *(f"group {group} was given up: {why}" for group, why in found["given_up"].items())]
    failures += [f"{one} was left behind" for one in found["left"]]
    if found["goodput"] < least:
        failures.append(f"goodput is {found['goodput']:.1%}, less than {least:.1%}")
    if not found["parameters"].startswith("0:"):
        failures.append(found["parameters"])
    return failures


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=30.0)
    p.add_argument("--every", type=float, default=60.0, help="seconds between two losses")
    p.add_argument("--least", type=float, default=0.95, help="goodput that is enough")
    p.add_argument("--out", type=Path, help="the record, as JSON")
    p.add_argument("--report", type=Path, help="the run's whole report, as HTML")
    args = p.parse_args()
    if args.every < 30:
        p.error("--every must be 30 at least: a node takes its time to boot")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    if sentence := missing():
        raise SystemExit(sentence)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        found = measure(folder, args.minutes, args.every)
        command = [sys.executable, "-m", "torchft_x", "report", str(folder / "run")]
        command += ["--out", str(args.report or folder / "report.html")]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("whole", "pause"):
        values = [row[name] for row in found["losses"] if row[name] is not None]
        found[name] = {"median": round(statistics.median(values), 2), "worst": max(values)} if values else None
    setting = {"groups": GROUPS, "nodes": NODES, "pace": PACE, "minutes": args.minutes, "every": args.every}
    bad = wrong(found, args.least)
    if args.out is not None:
        args.out.write_text(json.dumps({**setting, "wrong": bad, **found}, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "losses"}, indent=1))
    print("\n".join(bad) or "all is well")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
