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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.extended.kubernetes.cluster import IMAGE, LocalNode, cluster, missing
from tests.extended.kubernetes.faults.cost import cost, table, whole_at
from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.many import many, told
from tests.extended.kubernetes.shell import TOLERATION, Shell
from tests.extended.kubernetes.space import Space
from tests.unit.launch.lines import ROOT
from tests.util import clock, wait_for
from torchft_x.observe.report import commits

NODE_GRACE = 4.0  # seconds of silence until the controller manager calls a node not ready; 40 to 50 by default
AWAY = 60.0  # seconds without an API server
GPU = "nvidia.com/gpu"  # only counted: one on each node, so that two groups leave room for one
MANY = 100  # groups whose objects are made
FIGURES = ROOT / "docs/bench/kubernetes.json"

Json = dict[str, Any]


class Trial:
    """What is done to a job that trains, and what came of it."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.space = job.space
        self.cluster = job.space.cluster
        self.rows: list[Json] = []

    def fault(self, kind: str, victim: str, act: Callable[[], None], *, groups: int = 2, watch: float = 1.0) -> None:
        """Do it to a job that trains, and note what came of it. `watch`: seconds that are looked at, at the least."""
        wait_for(lambda: self.job.together(groups), 60, "all groups")
        time.sleep(1.5)  # steps as usual, with which the pause is compared
        began = time.time()
        act()
        wait_for(lambda: whole_at(self.job.events(), victim, groups, began), 90, f"all groups after: {kind}")
        whole = whole_at(self.job.events(), victim, groups, began) if victim else None
        end = max(began + watch, (whole or began) + 1.0)
        time.sleep(max(0.0, end - time.time()))
        survivors = [str(g) for g in range(groups) if str(g) != victim]
        found = cost(self.job.events(), victim, survivors, began, whole, end)
        self.rows.append({"fault": kind, **asdict(found)})
        whole_text = "" if found.whole is None else f", whole after {found.whole:.2f} s"
        print(
            f"{kind:<44} pause {found.pause:.3f} s{whole_text}, {found.dropped} dropped, {found.undone} undone",
            flush=True,
        )

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
            self.scale()
        for _ in range(rounds):  # last: Kubernetes' controllers ask an API server that was away for up to 30 s later
            self.api_away()
            self.kill_pod("1", "pod killed as the API server is back")
        return self.job.finish()

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
        pid = str(
            next(e["pid"] for e in reversed(self.job.events()) if e.get("event") == "commit" and e["group"] == group)
        )
        kill = ["python3", "-c", f"import os; os.kill({pid}, 9)"]
        self.fault("worker killed in its container", group, lambda: node.run_in(pod["metadata"]["uid"], kill))

    def lose_node(self) -> None:
        """Of a group that shares it with nothing else of the job, so that one thing fails."""
        group, node = wait_for(self._alone, 60, "a group with a node of its own")
        self.fault("node lost", group, node.lose)
        node.start()
        wait_for(
            lambda: len([p for p in self.space.list("pods") if p["spec"].get("nodeName") == node.name]) == 0, 60, "it"
        )

    def evict(self, group: str) -> None:
        name = self.job.pod(group)["metadata"]["name"]
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.space.name},
        }
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
        self.space.make("batch/v1/jobs", name, spec=body)
        began = time.time()

        def preempted() -> str:
            there = {p["metadata"]["name"]: p["metadata"] for p in self.space.list("pods")}
            gone = [g for g, pod in pods.items() if "deletionTimestamp" in there.get(pod, {"deletionTimestamp": ""})]
            return next(iter(gone), "")

        victim = wait_for(preempted, 30, "a preemption")
        self._watched("preempted by a higher priority for 5 s", victim, began)
        self.space.delete("batch/v1/jobs", name, propagationPolicy="Background")  # with its pods, which have ended

    def _watched(self, kind: str, victim: str, began: float) -> None:
        wait_for(lambda: whole_at(self.job.events(), victim, 2, began), 90, f"all groups after: {kind}")
        whole = whole_at(self.job.events(), victim, 2, began)
        time.sleep(1.0)
        found = cost(self.job.events(), victim, ["0" if victim == "1" else "1"], began, whole, time.time())
        self.rows.append({"fault": kind, **asdict(found)})
        print(f"{kind:<44} {found}", flush=True)

    def kill_lighthouse(self) -> None:
        name = self.job.lighthouse()["metadata"]["name"]
        at = time.time()

        def act() -> None:
            self.space.delete("pods", name, gracePeriodSeconds=0)
            wait_for(lambda: self._other_lighthouse(name), 60, "another lighthouse")
            print(f"  the next lighthouse was ready after {time.time() - at - 1.5:.1f} s", flush=True)

        self.fault("lighthouse's pod deleted", "", act, watch=8.0)

    def api_away(self) -> None:
        def act() -> None:
            self.cluster.stop_api_server()
            time.sleep(AWAY)
            self.cluster.start_api_server()

        self.fault(f"API server away for {AWAY:.0f} s", "", act, watch=AWAY + 10)
        free = lambda: not any(node["spec"].get("taints") for node in self.cluster.api.get("/api/v1/nodes")["items"])  # noqa: E731
        wait_for(free, 60, "all nodes to take pods again")  # they were called not ready meanwhile

    def scale(self) -> None:
        self._scaled("scaled from 2 to 3 groups", 3)
        self._scaled("scaled from 3 to 2 groups", 2)

    def _scaled(self, kind: str, groups: int) -> None:
        time.sleep(1.5)
        began = time.time()
        self.job.scale(groups)
        first = wait_for(lambda: self._commit_of(groups, began), 60, kind)
        assert first is not None
        time.sleep(2.0)
        found = cost(self.job.events(), "2", ["0", "1"], began, float(first["t"]), time.time())
        self.rows.append({"fault": kind, **asdict(found)})
        print(f"{kind:<44} {found}", flush=True)

    def _commit_of(self, groups: int, after: float) -> Json | None:
        """The first commit since then of so many groups."""
        later = (e for e in commits(self.job.events()) if float(e["t"]) > after)
        return next((e for e in later if int(e["participants"]) == groups), None)

    def _alone(self) -> tuple[str, LocalNode] | None:
        pods = {"0": self.job.pod("0"), "1": self.job.pod("1"), "": self.job.lighthouse()}
        where = {group: pod["spec"]["nodeName"] for group, pod in pods.items()}
        for group in ("1", "0"):
            if list(where.values()).count(where[group]) == 1:
                return group, self.cluster.nodes[where[group]]
        self.space.delete("pods", pods["1"]["metadata"]["name"])  # it is made again elsewhere
        wait_for(lambda: pods["1"]["metadata"]["uid"] != self.job.pod("1")["metadata"]["uid"], 60, "another place")
        return None

    def _other_lighthouse(self, name: str) -> bool:
        found = self.job.lighthouse_ready()
        return found is not None and found["metadata"]["name"] != name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each fault comes")
    parser.add_argument(
        "--groups-only", type=int, metavar="N", help="only make, see and cancel the objects of N groups"
    )
    parser.add_argument(
        "--out", type=Path, default=FIGURES, help="write the figures here, as JSON; default: %(default)s"
    )
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kubernetes-faults-") as name:
        folder = Path(name)
        if args.groups_only:
            with cluster(folder / "cluster") as made:
                print(told(many(Shell(Space(made), folder), args.groups_only)))
            return 0
        with cluster(folder / "cluster", nodes=3, node_grace=NODE_GRACE, resources={GPU: "1"}) as made:
            trial = Trial(TrainingJob(Shell(Space(made), folder), folder / "run", "--gpu", "1"))
            try:
                findings = trial.all(args.rounds)
            except BaseException:
                print(made.kubectl("get", "pods,jobs,nodes", "-A", "-o", "wide"), flush=True)
                print(made.kubectl("get", "events", "-n", trial.space.name)[-6000:], flush=True)
                raise
            found = many(Shell(Space(made), folder), MANY)
    print(f"\n{table(trial.rows)}\n\n{told(found)}")
    settings = {"node_grace": clock(NODE_GRACE), "toleration": TOLERATION, "nodes": 3, "groups": 2}
    result = {"settings": settings, "rows": trial.rows, "many": found, "findings": findings}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if findings or any(r["undone"] for r in trial.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
