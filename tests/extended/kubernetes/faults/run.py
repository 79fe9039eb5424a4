"""Train on a cluster of three nodes, apply the faults of a cluster, and report the cost of each.

    python -m tests.extended.kubernetes.faults.run --rounds 5

The job is kubernetes_ft's, submitted with `torchx run`. Its two groups train while pods, containers, nodes, the
lighthouse and the API server are taken away in turn. At the end the parameters of all groups are compared at every
committed step (benchmarks/evidence/check_params.py). The exit code is 0 only if all groups came back each time, the job
SUCCEEDED and the comparison holds. A round takes some four minutes. Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.evidence.cost import cost, table, whole_at
from tests.events import commits
from tests.extended.kubernetes.cluster import IMAGE, LocalNode, cluster, missing
from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.shell import TOLERATION, Shell
from tests.extended.kubernetes.space import Space
from tests.started import ROOT
from tests.util import scaled, wait_for

NODE_GRACE = 4.0  # seconds of silence until the controller manager marks a node not ready; 40 to 50 by default
AWAY = 60.0  # seconds without an API server
GPU = "nvidia.com/gpu"  # only counted: one on each of three nodes, so that two groups leave one free
FIGURES = ROOT / "docs/bench/kubernetes.json"

Json = dict[str, Any]


class Trial:
    """The faults applied to a training job, and their costs in `rows`."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.space = job.space
        self.cluster = job.space.cluster
        self.rows: list[Json] = []

    def fault(self, kind: str, victim: str, act: Callable[[], None], *, groups: int = 2, watch: float = 1.0) -> None:
        """Apply a fault to a training job, and record its cost. `watch`: least number of seconds to observe."""
        wait_for(lambda: self.job.together(groups), 60, "all groups")
        time.sleep(1.5)  # undisturbed steps, with which the pause is compared
        began = time.time()
        act()
        self._watch(kind, victim, began, groups, watch)

    def _watch(self, kind: str, victim: str, began: float, groups: int = 2, seconds: float = 1.0) -> None:
        """Wait until the victim is back, and record the cost of the fault at `began`."""
        at = lambda: whole_at(self.job.events(), victim, groups, began)  # noqa: E731
        whole = wait_for(at, 90, f"all groups after: {kind}")
        end = max(began + seconds, whole + 1.0 if victim else 0.0)
        time.sleep(max(0.0, end - time.time()))
        survivors = [str(g) for g in range(groups) if str(g) != victim]
        self._note(kind, victim, survivors, began, whole if victim else None, end)

    def _note(
        self, kind: str, victim: str, survivors: list[str], began: float, whole: float | None, end: float
    ) -> None:
        found = cost(self.job.events(), victim, survivors, began, whole, end)
        self.rows.append({"fault": kind, **asdict(found)})
        print(f"{kind:<44} {found}", flush=True)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Print the state of the cluster if the trial fails."""
        try:
            yield
        except BaseException:
            print(self.cluster.kubectl("get", "pods,jobs,nodes", "-A", "-o", "wide"), flush=True)
            print(self.cluster.kubectl("get", "events", "-n", self.space.name)[-6000:], flush=True)
            raise

    def report(self, out: Path | None, findings: list[str]) -> int:
        """Print the figures, and write them as JSON. Return the exit code."""
        print(f"\n{table(self.rows)}")
        settings = {"node_grace": scaled(NODE_GRACE), "toleration": TOLERATION, "nodes": len(self.cluster.nodes)}
        result = {"settings": {**settings, "groups": 2}, "rows": self.rows, "findings": findings}
        if out is not None:
            out.write_text(json.dumps(result, indent=1) + "\n")
        return 1 if findings or any(row["undone"] for row in self.rows) else 0

    def all(self, rounds: int) -> list[str]:
        """Apply all faults `rounds` times. Return findings, none if all is well."""
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
        for _ in range(rounds):  # last: Kubernetes' controllers retry an API server that was away only after up to 30 s
            self.api_away()
            self.kill_pod("1", "pod killed as the API server is back")
        return self.job.finish()

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill_pod(self, group: str, kind: str = "pod killed") -> None:
        name = self.job.pod(group)["metadata"]["name"]
        self.fault(kind, group, lambda: self.space.delete("pods", name, gracePeriodSeconds=0))

    def kill_container(self, group: str) -> None:
        node, uid = self._where(group)
        self.fault("container killed, the first of a pod", group, lambda: node.kill_container(uid))

    def kill_worker(self, group: str) -> None:
        node, uid = self._where(group)
        kill = ["python3", "-c", f"import os; os.kill({commits(self.job.events(), group=group)[-1]['pid']}, 9)"]
        self.fault("worker killed in its container", group, lambda: node.run_in(uid, kill))

    def _where(self, group: str) -> tuple[LocalNode, str]:
        """Return the node of a group's pod, and the pod's uid."""
        pod = self.job.pod(group)
        return self.cluster.nodes[pod["spec"]["nodeName"]], pod["metadata"]["uid"]

    def lose_node(self) -> None:
        """Lose the node of a group that shares it with no other part of the job, so that one thing fails."""
        group, node = wait_for(self._alone, 60, "a group with a node of its own")
        self.fault("node lost", group, node.lose)
        node.start()
        pods = lambda: [p for p in self.space.list("pods") if p["spec"].get("nodeName") == node.name]  # noqa: E731
        wait_for(lambda: not pods(), 60, "a node without pods")

    def evict(self, group: str) -> None:
        name = self.job.pod(group)["metadata"]["name"]
        meta = {"name": name, "namespace": self.space.name}
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": meta}
        at = f"{self.space.at('pods')}/{name}/eviction"
        self.fault("evicted (the Eviction API)", group, lambda: self.cluster.api.post(at, body))

    def preempt(self, name: str) -> None:
        """Start two pods of a higher priority for 5 s. Each needs a device, and one is free."""
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
        self._watch("preempted by a higher priority for 5 s", victim, began)
        self.space.delete(
            "batch/v1/jobs", name, propagationPolicy="Background"
        )  # its pods, which have ended, go with it

    def kill_lighthouse(self) -> None:
        name = self.job.lighthouse()["metadata"]["name"]
        at = time.time()

        def act() -> None:
            self.space.delete("pods", name, gracePeriodSeconds=0)
            wait_for(lambda: self.job.lighthouse()["metadata"]["name"] != name, 60, "another lighthouse")
            print(f"  the next lighthouse was ready after {time.time() - at - 1.5:.1f} s", flush=True)

        self.fault("lighthouse's pod deleted", "", act, watch=8.0)

    def api_away(self) -> None:
        def act() -> None:
            self.cluster.stop_api_server()
            time.sleep(AWAY)
            self.cluster.start_api_server()

        self.fault(f"API server away for {AWAY:.0f} s", "", act, watch=AWAY + 10)
        free = lambda: not any(node["spec"].get("taints") for node in self.cluster.api.get("/api/v1/nodes")["items"])  # noqa: E731
        wait_for(free, 60, "all nodes to take pods again")  # they were marked not ready meanwhile

    def scale(self) -> None:
        self._scaled("scaled from 2 to 3 groups", 3)
        self._scaled("scaled from 3 to 2 groups", 2)

    def _scaled(self, kind: str, groups: int) -> None:
        time.sleep(1.5)
        began = time.time()
        self.job.scale(groups)
        later = lambda: (e for e in commits(self.job.events()) if float(e["t"]) > began)  # noqa: E731
        alike = lambda: next((float(e["t"]) for e in later() if int(e["participants"]) == groups), None)  # noqa: E731
        first = wait_for(alike, 60, kind)
        time.sleep(2.0)
        self._note(kind, "2", ["0", "1"], began, first, time.time())

    def _alone(self) -> tuple[str, LocalNode] | None:
        pods = {"0": self.job.pod("0"), "1": self.job.pod("1"), "": self.job.lighthouse()}
        where = {group: pod["spec"]["nodeName"] for group, pod in pods.items()}
        for group in ("1", "0"):
            if list(where.values()).count(where[group]) == 1:
                return group, self.cluster.nodes[where[group]]
        self.space.delete("pods", pods["1"]["metadata"]["name"])  # Kubernetes makes the pod again on another node
        wait_for(lambda: pods["1"]["metadata"]["uid"] != self.job.pod("1")["metadata"]["uid"], 60, "another pod")
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each fault comes")
    parser.add_argument("--out", type=Path, default=FIGURES, help="where the JSON goes; default: %(default)s")
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kubernetes-faults-") as name:
        folder = Path(name)
        with cluster(folder / "cluster", nodes=3, node_grace=NODE_GRACE, resources={GPU: "1"}) as made:
            trial = Trial(TrainingJob(Shell(Space(made), folder), folder / "run", "--gpu", "1"))
            with trial.explained():
                findings = trial.all(args.rounds)
    return trial.report(args.out, findings)


if __name__ == "__main__":
    sys.exit(main())
