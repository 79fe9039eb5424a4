"""Train on a cluster of three nodes, break what a cluster breaks, and say what each fault cost.

    python -m tests.extended.kubernetes.faults.run --rounds 5

The job is kubernetes_ft's, submitted with `torchx run`. Its two groups train without end while pods, containers, nodes,
the lighthouse and the API server are taken away in turn; at the end every group's parameters are compared as they were
at every committed step (scripts/check_params.py). Exit code 0 only if all groups came back each time, the job SUCCEEDED
and the comparison holds. Takes some four minutes a round; needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.extended.kubernetes.cluster import IMAGE, LocalNode, cluster, missing
from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.shell import TOLERATION, Shell
from tests.extended.kubernetes.space import Space
from tests.unit.launch.lines import ROOT
from tests.util import clock, wait_for
from torchft_x.observe.report import commits

NODE_GRACE = 4.0  # seconds of silence until the controller manager calls a node not ready; 40 to 50 by default
AWAY = 60.0  # seconds without an API server
GPU = "nvidia.com/gpu"  # only counted: one on each node, so that two groups leave room for one
FIGURES = ROOT / "docs/bench/kubernetes.json"

Json = dict[str, Any]


class Trial:
    """Faults of a job that trains, and what each cost (`rows`)."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.space = job.space
        self.cluster = job.space.cluster
        self.rows: list[Json] = []

    def all(self, rounds: int) -> list[str]:
        """Everything; findings, none if all is well."""
        self.job.begin()
        for n in range(rounds):
            self.kill_pod("1")
            self.kill_container("1")
            self.kill_worker("0")
            self.lose_node()
            self.evict("0")
            self.preempt(f"urgent-{n}")
            self.kill_lighthouse()
            self.scale(3)
            self.scale(2)
        for _ in range(rounds):  # last: Kubernetes' controllers ask an API server that was away for up to 30 s later
            self.api_away()
            self.kill_pod("1", "pod killed as the API server is back")
        return self.job.finish()

    def fault(self, kind: str, victim: str, act: Callable[[], object], *, watch: float = 1.0) -> None:
        """Do it to a job that trains, and record what it cost."""
        self._calm()
        began = time.time()
        act()
        self._record(kind, victim, began, watch=watch)

    def _calm(self) -> None:
        """Wait for steps as usual, with which the pause is compared."""
        wait_for(lambda: self.job.together(2), 60, "all groups")
        time.sleep(1.5)

    def _record(self, kind: str, victim: str, began: float, *, groups: int = 2, watch: float = 1.0) -> None:
        """Wait until `groups` groups commit together with the victim's next life. `watch`: seconds that are looked at, at the
        least."""
        back = wait_for(lambda: together_at(self.job.events(), victim, groups, began), 90, f"all groups after: {kind}")
        assert back is not None
        end = max(began + watch, back + 1.0)
        time.sleep(max(0.0, end - time.time()))
        events = self.job.events()
        within = [e for e in events if began < float(e["t"]) <= end]
        survivors = [group for group in "01" if group != victim]
        row = {
            "fault": kind,
            "pause": max(pause(events, group, began, end) for group in survivors),
            "whole": back - began,
            "dropped": len(
                {e.get("step") for e in within if e["event"] == "drop" and str(e.get("group")) in survivors}
            ),
            "undone": sum(int(e.get("steps", 0)) for e in within if e["event"] == "new_lineage"),
        }
        self.rows.append(row)
        print(
            f"{kind:<44} pause {row['pause']:.3f} s, whole after {row['whole']:.2f} s, {row['dropped']} dropped, "
            f"{row['undone']} undone",
            flush=True,
        )

    # --- what is done ----------------------------------------------------------------------------------------------

    def kill_pod(self, group: str, kind: str = "pod killed") -> None:
        name = self.job.pod(group)["metadata"]["name"]
        self.fault(kind, group, lambda: self.space.delete("pods", name, gracePeriodSeconds=0))

    def kill_container(self, group: str) -> None:
        pod = self.job.pod(group)
        node = self.cluster.nodes[pod["spec"]["nodeName"]]
        self.fault("container killed, the first of a pod", group, lambda: node.kill_container(pod["metadata"]["uid"]))

    def kill_worker(self, group: str) -> None:
        pod = self.job.pod(group)
        node = self.cluster.nodes[pod["spec"]["nodeName"]]
        pid = commits(self.job.events(), group=group)[-1]["pid"]
        kill = ["python3", "-c", f"import os; os.kill({pid}, 9)"]
        self.fault("worker killed in its container", group, lambda: node.run_in(pod["metadata"]["uid"], kill))

    def lose_node(self) -> None:
        """Of a group that shares it with nothing else of the job, so that one thing fails."""
        group, node = wait_for(self._alone, 60, "a group with a node of its own")
        self.fault("node lost", group, node.lose)
        node.start()
        names = lambda: [p["spec"].get("nodeName") for p in self.space.list("pods")]  # noqa: E731
        wait_for(lambda: node.name not in names(), 60, "the end of what ran there")

    def evict(self, group: str) -> None:
        name = self.job.pod(group)["metadata"]["name"]
        meta = {"name": name, "namespace": self.space.name}
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": meta}
        at = f"{self.space.at('pods')}/{name}/eviction"
        self.fault("evicted (the Eviction API)", group, lambda: self.cluster.api.post(at, body))

    def preempt(self, name: str) -> None:
        """By two pods of a higher priority that need a device each, of which one is free; they stay for some seconds."""
        above = {"metadata": {"name": name}, "value": 1000}
        self.cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", above)
        container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "5"]}
        limits = {"resources": {"limits": {GPU: "1"}}}
        spec = {"restartPolicy": "Never", "priorityClassName": name, "containers": [{**container, **limits}]}
        body = {"parallelism": 2, "completions": 2, "template": {"spec": spec}}
        pods = {group: self.job.pod(group)["metadata"]["name"] for group in ("0", "1")}

        def preempted() -> str:
            there = {p["metadata"]["name"]: p["metadata"] for p in self.space.list("pods")}
            gone = [g for g, pod in pods.items() if "deletionTimestamp" in there.get(pod, {"deletionTimestamp": ""})]
            return next(iter(gone), "")

        self._calm()
        self.space.make("batch/v1/jobs", name, spec=body)
        began = time.time()
        victim = wait_for(preempted, 30, "a preemption")
        self._record("preempted by a higher priority for 5 s", victim, began)
        self.space.delete("batch/v1/jobs", name, propagationPolicy="Background")  # with its pods, which have ended

    def kill_lighthouse(self) -> None:
        name = self.job.lighthouse()["metadata"]["name"]

        def act() -> None:
            self.space.delete("pods", name, gracePeriodSeconds=0)
            wait_for(lambda: self.job.lighthouse()["metadata"]["name"] != name, 60, "another lighthouse")

        self.fault("lighthouse's pod deleted", "", act, watch=8.0)

    def api_away(self) -> None:
        def act() -> None:
            self.cluster.stop_api_server()
            time.sleep(AWAY)
            self.cluster.start_api_server()

        self.fault(f"API server away for {AWAY:.0f} s", "", act, watch=AWAY + 10)
        free = lambda: not any(node["spec"].get("taints") for node in self.cluster.api.get("/api/v1/nodes")["items"])  # noqa: E731
        wait_for(free, 60, "all nodes to take pods again")  # they were called not ready meanwhile

    def scale(self, groups: int) -> None:
        time.sleep(1.5)
        began = time.time()
        self.job.scale(groups)
        self._record(f"scaled to {groups} groups", "", began, groups=groups)

    def _alone(self) -> tuple[str, LocalNode] | None:
        pods = {"0": self.job.pod("0"), "1": self.job.pod("1"), "": self.job.lighthouse()}
        where = {group: pod["spec"]["nodeName"] for group, pod in pods.items()}
        for group in ("1", "0"):
            if list(where.values()).count(where[group]) == 1:
                return group, self.cluster.nodes[where[group]]
        self.space.delete("pods", pods["1"]["metadata"]["name"])  # it is made again elsewhere
        wait_for(lambda: pods["1"]["metadata"]["uid"] != self.job.pod("1")["metadata"]["uid"], 60, "another place")
        return None


def together_at(events: list[Json], victim: str, groups: int, t: float) -> float | None:
    """When `groups` groups committed together after `t`, with another life of the victim (empty: there is none)."""
    before = {e.get("replica_id") for e in commits(events, group=victim) if float(e["t"]) <= t}
    for e in commits(events):
        again = not victim or (str(e.get("group")) == victim and e.get("replica_id") not in before)
        if float(e["t"]) > t and again and int(e.get("participants", 0)) == groups:
            return float(e["t"])
    return None


def pause(events: list[Json], group: str, t: float, end: float) -> float:
    """The longest time without a commit of the group from its last one before `t` on, less what a step usually takes."""
    times = [float(e["t"]) for e in commits(events, group=group) if t - 5 < float(e["t"]) <= end]
    before = [x for x in times if x <= t]
    seen = [before[-1], *(x for x in times if x > t), end]
    return max(b - a for a, b in pairwise(seen)) - median(b - a for a, b in pairwise(before))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each fault comes")
    parser.add_argument("--out", type=Path, default=FIGURES, help="write the figures here; default: %(default)s")
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kubernetes-faults-") as name:
        folder = Path(name)
        with cluster(folder / "cluster", nodes=3, node_grace=NODE_GRACE, resources={GPU: "1"}) as made:
            trial = Trial(TrainingJob(Shell(Space(made), folder), folder / "run", "--gpu", "1"))
            try:
                findings = trial.all(args.rounds)
            except BaseException:
                print(made.kubectl("get", "pods,jobs,nodes", "-A", "-o", "wide"), flush=True)
                print(made.kubectl("get", "events", "-n", trial.space.name)[-6000:], flush=True)
                raise
    settings = {"node_grace": clock(NODE_GRACE), "toleration": TOLERATION, "nodes": 3, "groups": 2}
    args.out.write_text(json.dumps({"settings": settings, "rows": trial.rows, "findings": findings}, indent=1) + "\n")
    return 1 if findings or any(row["undone"] for row in trial.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
