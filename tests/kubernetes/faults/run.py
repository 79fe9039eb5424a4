"""Train on a cluster of three nodes, break what a cluster breaks, and say what each fault cost.

    python -m tests.kubernetes.faults.run --rounds 5 --out docs/bench/kubernetes.json

Two groups train without end while pods, containers, nodes, the lighthouse and the API server are taken away in turn; at
the end every group's parameters are compared as they were at every committed step (scripts/check_params.py). Exit code 0
only if all groups came back each time and the comparison holds. Takes some five minutes; needs root.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.kubernetes.cluster import Cluster, LocalNode, cluster, missing
from tests.kubernetes.faults.cost import cost, whole_at
from tests.kubernetes.faults.objects import GROUP, TOLERATION, TrainingJob
from tests.kubernetes.space import Space
from tests.util import wait_for
from torchft_x.observe.events import EventTail
from torchft_x.observe.report import commits, training_together

ROOT = Path(__file__).resolve().parents[3]
NODE_GRACE = 4.0  # seconds of silence until the controller manager calls a node not ready; 40 to 50 by default
AWAY = 60.0  # seconds without an API server
GPU = "nvidia.com/gpu"  # only counted: one on each node, so that two groups leave room for one
MODEL = [
    "--width",
    "32",
    "--layers",
    "1",
    "--heads",
    "2",
    "--batch-size",
    "2",
    "--seq-len",
    "32",
    "--data-mb",
    "0.2",
    "--pace",
    "0.05",
    "--steps",
    "1000000",
]

Json = dict[str, Any]


class Trial:
    """A job that trains, and what is done to it."""

    def __init__(self, made: Cluster, folder: Path, limits: dict[str, str]) -> None:
        self.cluster = made
        self.folder = folder
        self.space = Space(made)
        self.rows: list[Json] = []
        self._until = folder / "until"
        self.arguments = [*MODEL, "--until", str(self._until), "--dump-params", str(folder / "dumps")]
        self.job = TrainingJob("ft", secrets.token_hex(16), str(folder), 3, self.arguments, limits)
        self._tail = EventTail(folder)
        self._events: list[Json] = []

    def events(self) -> list[Json]:
        if new := self._tail.new():
            self._events = sorted([*self._events, *new], key=lambda e: float(e["t"]))
        return self._events

    def begin(self) -> None:
        for kind, body in [*self.job.common(), self.job.group(0), self.job.group(1)]:
            self.cluster.api.post(self.space.at(kind), body)
        wait_for(lambda: self.together(2), 60, "both groups")

    def together(self, groups: int) -> bool:
        recent = [e for e in self.events() if float(e["t"]) > time.time() - 2]
        return training_together(recent, groups)

    def pod(self, group: str) -> Json:
        found = wait_for(lambda: self.space.ready(app="ft", **{GROUP: group}), 60, f"a pod of group {group}")
        assert found is not None
        return found

    def pods(self, group: str) -> list[str]:
        """The uids of all pods of a group, also of those that have ended."""
        return [p["metadata"]["uid"] for p in self.space.list("pods") if p["metadata"]["labels"].get(GROUP) == group]

    def lighthouse(self) -> Json:
        found = wait_for(lambda: self.space.ready(app="ft", role="lighthouse"), 60, "the lighthouse's pod")
        assert found is not None
        return found

    def fault(self, kind: str, victim: str, act: Callable[[], None], *, groups: int = 2, watch: float = 1.0) -> None:
        """Do it to a job that trains, and note what came of it. `watch`: seconds that are looked at, at the least."""
        wait_for(lambda: self.together(groups), 60, "all groups")
        time.sleep(1.5)  # steps as usual, with which the pause is compared
        began = time.time()
        act()
        wait_for(lambda: whole_at(self.events(), victim, groups, began), 90, f"all groups after: {kind}")
        whole = whole_at(self.events(), victim, groups, began) if victim else None
        end = max(began + watch, (whole or began) + 1.0)
        time.sleep(max(0.0, end - time.time()))
        survivors = [str(g) for g in range(groups) if str(g) != victim]
        found = cost(self.events(), victim, survivors, began, whole, end)
        self.rows.append({"fault": kind, **asdict(found)})
        whole_text = "" if found.whole is None else f", whole after {found.whole:.2f} s"
        print(
            f"{kind:<44} pause {found.pause:.3f} s{whole_text}, {found.dropped} dropped, {found.undone} undone",
            flush=True,
        )

    def all(self, rounds: int) -> list[str]:
        """Everything; findings, none if all is well."""
        self.begin()
        for _ in range(rounds):
            self.kill_pod("1")
            self.kill_container("1")
            self.kill_worker("0")
            self.lose_node()
        self.evict("0")
        self.preempt()
        self.kill_lighthouse()
        self.scale()
        self.api_away()
        return self.finish()

    # --- what is done ----------------------------------------------------------------------------------------------

    def kill_pod(self, group: str) -> None:
        name = self.pod(group)["metadata"]["name"]
        self.fault("pod killed", group, lambda: self.space.delete("pods", name, gracePeriodSeconds=0))

    def kill_container(self, group: str) -> None:
        pod = self.pod(group)
        node = self.cluster.nodes[pod["spec"]["nodeName"]]
        self.fault("container killed, the first of a pod", group, lambda: node.kill_container(pod["metadata"]["uid"]))

    def kill_worker(self, group: str) -> None:
        pod = self.pod(group)
        node = self.cluster.nodes[pod["spec"]["nodeName"]]
        pid = str(next(e["pid"] for e in reversed(self.events()) if e.get("event") == "commit" and e["group"] == group))
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
        name = self.pod(group)["metadata"]["name"]
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.space.name},
        }
        at = f"{self.space.at('pods')}/{name}/eviction"
        self.fault("evicted (the Eviction API)", group, lambda: self.cluster.api.post(at, body))

    def preempt(self) -> None:
        """By two pods of a higher priority that need a device each, of which one is free; they stay for some seconds."""
        above = {"metadata": {"name": "urgent"}, "value": 1000}
        self.cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", above)
        container = {"name": "main", "image": "local/machine", "imagePullPolicy": "Never", "command": ["sleep", "5"]}
        limits = {"resources": {"limits": {GPU: "1"}}}
        spec = {"restartPolicy": "Never", "priorityClassName": "urgent", "containers": [{**container, **limits}]}
        body = {"parallelism": 2, "completions": 2, "template": {"spec": spec}}
        pods = {group: self.pod(group)["metadata"]["name"] for group in ("0", "1")}
        self.space.make("batch/v1/jobs", "urgent", spec=body)
        began = time.time()

        def preempted() -> str:
            there = {p["metadata"]["name"]: p["metadata"] for p in self.space.list("pods")}
            gone = [g for g, name in pods.items() if "deletionTimestamp" in there.get(name, {"deletionTimestamp": ""})]
            return next(iter(gone), "")

        victim = wait_for(preempted, 30, "a preemption")
        self._watched("preempted by a higher priority for 5 s", victim, began)

    def _watched(self, kind: str, victim: str, began: float) -> None:
        wait_for(lambda: whole_at(self.events(), victim, 2, began), 90, f"all groups after: {kind}")
        whole = whole_at(self.events(), victim, 2, began)
        time.sleep(1.0)
        found = cost(self.events(), victim, ["0" if victim == "1" else "1"], began, whole, time.time())
        self.rows.append({"fault": kind, **asdict(found)})
        print(f"{kind:<44} {found}", flush=True)

    def kill_lighthouse(self) -> None:
        name = self.lighthouse()["metadata"]["name"]
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

    def scale(self) -> None:
        kind, body = self.job.group(2)
        self._scaled("scaled from 2 to 3 groups", lambda: self.cluster.api.post(self.space.at(kind), body), 3)
        down = {"propagationPolicy": "Background"}
        self._scaled("scaled from 3 to 2 groups", lambda: self.space.delete(kind, "ft-2", **down), 2)

    def _scaled(self, kind: str, act: Callable[[], Any], groups: int) -> None:
        time.sleep(1.5)
        began = time.time()
        act()
        first = wait_for(lambda: self._commit_of(groups, began), 60, kind)
        assert first is not None
        time.sleep(2.0)
        found = cost(self.events(), "2", ["0", "1"], began, float(first["t"]), time.time())
        self.rows.append({"fault": kind, **asdict(found)})
        print(f"{kind:<44} {found}", flush=True)

    def _commit_of(self, groups: int, after: float) -> Json | None:
        """The first commit since then of so many groups."""
        later = (e for e in commits(self.events()) if float(e["t"]) > after)
        return next((e for e in later if int(e["participants"]) == groups), None)

    def finish(self) -> list[str]:
        """Let the job come to its end; findings, none if all is well."""
        newest = max(int(e["step"]) for e in commits(self.events()))
        part = self._until.with_suffix(".part")
        part.write_text(str(newest + 100))
        part.rename(self._until)
        wait_for(self._done, 120, "the job's end")
        command = [sys.executable, "scripts/check_params.py", str(self.folder / "dumps")]
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        print(checked.stdout.strip()[-600:], checked.stderr.strip()[-2000:], flush=True)
        return [] if checked.returncode == 0 else [checked.stdout.strip()[-2000:]]

    def _done(self) -> bool:
        jobs = {j["metadata"]["name"]: j["status"] for j in self.space.list("batch/v1/jobs")}
        return all(jobs[name].get("succeeded") for name in ("ft-0", "ft-1"))

    def _alone(self) -> tuple[str, LocalNode] | None:
        pods = {"0": self.pod("0"), "1": self.pod("1"), "": self.lighthouse()}
        where = {group: pod["spec"]["nodeName"] for group, pod in pods.items()}
        for group in ("1", "0"):
            if list(where.values()).count(where[group]) == 1:
                return group, self.cluster.nodes[where[group]]
        self.space.delete("pods", pods["1"]["metadata"]["name"])  # it is made again elsewhere
        wait_for(lambda: pods["1"]["metadata"]["uid"] != self.pod("1")["metadata"]["uid"], 60, "another place")
        return None

    def _other_lighthouse(self, name: str) -> bool:
        found = self.space.ready(app="ft", role="lighthouse")
        return found is not None and found["metadata"]["name"] != name


def create_many(space: Space, job: TrainingJob, count: int) -> float:
    """Seconds in which the objects of `count` groups are made, one request after the other."""
    began = time.monotonic()
    for number in range(count):
        kind, body = job.group(number + 1000)
        body["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such"}  # nothing of it runs
        space.cluster.api.post(space.at(kind), body)
    return time.monotonic() - began


def table(rows: list[Json]) -> str:
    """Markdown: of each kind, the number, medians and worst."""
    lines = [
        "| fault | n | pause of the survivors (s) | whole again (s) | steps dropped | undone |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(r["fault"] for r in rows):
        mine = [r for r in rows if r["fault"] == kind]
        whole = [r["whole"] for r in mine if r["whole"] is not None]
        cells = [kind, str(len(mine)), _figures([r["pause"] for r in mine]), _figures(whole)]
        cells += [str(sum(r["dropped"] for r in mine)), str(sum(r["undone"] for r in mine))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{values[0]:.2f}" if len(values) == 1 else f"{median(values):.2f}, worst {max(values):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the faults of pods and nodes; the others come once")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    args = parser.parse_args()
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kubernetes-faults-") as folder:
        (Path(folder) / "run").mkdir()
        options = {"nodes": 3, "node_grace": NODE_GRACE, "resources": {GPU: "1"}}
        with cluster(Path(folder) / "cluster", **options) as made:
            trial = Trial(made, Path(folder) / "run", {GPU: "1"})
            try:
                findings = trial.all(args.rounds)
            except BaseException:
                print(made.kubectl("get", "pods,jobs,nodes", "-A", "-o", "wide"), flush=True)
                print(made.kubectl("get", "events", "-n", trial.space.name)[-6000:], flush=True)
                raise
            hundred = create_many(Space(made), trial.job, 100)
    print(f"\n{table(trial.rows)}\n\n100 groups' objects made in {hundred:.1f} s")
    settings = {"node_grace": NODE_GRACE, "toleration": TOLERATION, "nodes": 3, "groups": 2}
    result = {"settings": settings, "rows": trial.rows, "hundred_groups": hundred, "findings": findings}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if findings or any(r["undone"] for r in trial.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
