"""Groups over several nodes as real processes: a lighthouse, a supervisor per node, toy scripts. All on this host."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.started import TORCHFT_X, Started, gone
from tests.util import wait_for
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events

SLEEPER = """if True:
    import json, os, sys, time
    attempt = json.loads(os.environ["TORCHFT_X_ATTEMPT"])
    print("up", os.environ["REPLICA_GROUP_ID"], attempt["number"], attempt["token"], os.getpid(), flush=True)
    time.sleep(1000)
"""


class Cluster:
    """Lighthouse and supervisors of `groups` groups of `nodes` nodes; their output by name."""

    def __init__(
        self, folder: Path, text: str, *, groups: int = 2, nodes: int = 2, replaced_within: float = 0, **options
    ) -> None:
        self.folder = folder
        self.groups = groups
        self.nodes = nodes
        self.options = {"workers": nodes, "max_restarts": 10} | options
        self.end = folder / "end"
        self.processes: dict[str, Started] = {}
        (folder / "script.py").write_text(text)
        names = ",".join(str(g) for g in range(groups))
        patient = ("--replaced_within", str(replaced_within)) if replaced_within else ()
        words = (
            "--bind",
            "127.0.0.1:0",
            "--min_replicas",
            "1",
            "--job_groups",
            names,
            "--run_dir",
            str(folder),
            *patient,
        )
        self.start("lighthouse", "lighthouse", *words)

    def start(self, name: str, *command: str) -> None:
        log = self.folder / f"{name}.txt"
        self.processes[name] = Started([*TORCHFT_X, *command], log, TORCHX_JOB_ID="local_cwd://test/app")

    def supervise(self, group: int, node: int) -> None:
        """Supervisor ``G.N``."""
        flags = [x for k, v in self.options.items() for x in (f"--{k}", str(v))]
        flags += ["--replica", str(group * self.nodes + node), "--nodes", str(self.nodes), "--groups", str(self.groups)]
        script = [str(self.folder / "script.py"), str(self.end)]
        self.start(f"{group}.{node}", "supervise", *flags, "--run_dir", str(self.folder), "--", *script)

    def supervise_all(self) -> None:
        for group in range(self.groups):
            for node in range(self.nodes):
                self.supervise(group, node)

    def text(self, name: str) -> str:
        return self.processes[name].output()

    def everything(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.folder.glob("*.txt")))

    def ups(self, group: int, node: int) -> list[tuple[int, str, int]]:
        """Number, token and pid of each attempt of a SLEEPER."""
        found = re.findall(r"up \d+ (\d+) (\w+) (\d+)\n", self.text(f"{group}.{node}"))
        return [(int(a), token, int(pid)) for a, token, pid in found]

    def wait_for(self, condition, seconds: float, what: str):  # type: ignore[no-untyped-def]
        try:
            return wait_for(condition, seconds, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.everything()}") from None

    def codes(self) -> dict[str, int]:
        try:
            return {name: process.wait() for name, process in self.processes.items()}
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.everything()}") from None

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        gone(self.folder, 10)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator:
    made: list[Cluster] = []

    def start(text: str, **options) -> Cluster:
        made.append(Cluster(tmp_path, text, **options))
        made[0].supervise_all()
        return made[0]

    yield start
    for one in made:
        one.close()


def sleeping(run: Cluster, attempts: int = 1, groups: tuple[int, ...] = (0, 1)) -> list[list[tuple[int, str, int]]]:
    """Wait until each node of these groups has started so many attempts; the newest of each node."""

    def newest() -> list[list[tuple[int, str, int]]]:
        ups = [[run.ups(g, n) for n in range(run.nodes)] for g in groups]
        return [[u[-1] for u in group] for group in ups] if all(len(u) >= attempts for g in ups for u in g) else []

    return run.wait_for(newest, 30.0, f"{attempts} attempts")


def test_all_nodes_of_a_group_run_the_same_attempt_and_fall_together(cluster) -> None:
    run = cluster(SLEEPER)
    zero, one = sleeping(run)
    for group in (zero, one):
        assert {(attempt, token) for attempt, token, _ in group} == {(0, group[0][1])}
    assert zero[0][1] != one[0][1]
    os.kill(one[1][2], signal.SIGKILL)
    (again,) = sleeping(run, 2, (1,))
    assert {(attempt, token) for attempt, token, _ in again} == {(1, again[0][1])}
    assert not process_tree.is_alive(one[0][2])
    assert len(run.ups(0, 0)) == len(run.ups(0, 1)) == 1  # the other group noticed nothing
    assert all(process_tree.is_alive(pid) for _, _, pid in zero)
    died = "group 1 died: node 1: worker 1 killed by SIGKILL after"
    assert run.text("1.0").count(died) == 1
    assert "group 1 died" not in run.text("1.1")  # node 0 says so, and this one only what was collected


def test_all_end_well_together(cluster) -> None:
    run = cluster("print('trained')", nodes=3, groups=1)
    assert run.codes() == {"lighthouse": 0, "0.0": 0, "0.1": 0, "0.2": 0}
    assert "All 1 groups finished." in run.text("lighthouse")
    assert (run.folder / "logs" / "group-0-attempt-0-node-2.log").read_text() == "[rank 2] trained\n"
    nodes = {(e["node"], e["event"]) for e in read_events(run.folder) if e["role"] == "supervisor"}
    assert nodes == {(n, e) for n in range(3) for e in ("start", "exit")}


def test_the_budget_is_the_groups_and_giving_up_is_told_once(cluster) -> None:
    script = SLEEPER.replace("time.sleep(1000)", "sys.exit(7) if attempt['number'] < 2 else time.sleep(1000)")
    run = cluster(script, groups=1, max_restarts=1)
    codes = run.codes()
    assert codes == {"lighthouse": 1, "0.0": 1, "0.1": 1}
    assert max(a for n in (0, 1) for a, _, _ in run.ups(0, n)) == 1
    assert run.text("0.0").count("1 restarts within") == 1
    assert "node 1 of group 0 stops: node 0 stopped: " in run.text("0.1")
    assert "gave up" in run.text("lighthouse")


def test_a_supervisor_that_is_started_again_alone_is_brought_up_to_the_groups_number(cluster) -> None:
    run = cluster(SLEEPER, groups=1, replaced_within=60)  # a busy machine is slow to start it
    ((_, (_, _, worker)),) = sleeping(run, 1, (0,))
    os.kill(worker, signal.SIGKILL)
    ((other, (_, _, worker)),) = sleeping(run, 2, (0,))
    run.processes["0.1"].kill()
    run.wait_for(lambda: not process_tree.is_alive(worker), 10.0, "the worker's end")
    run.supervise(0, 1)
    ((zero, one),) = sleeping(run, 3, (0,))
    assert zero[:2] == one[:2]
    assert zero[0] == 2
    assert not process_tree.is_alive(other[2])


def test_a_signal_to_all_leaves_nothing(cluster) -> None:
    run = cluster(SLEEPER)
    sleeping(run)
    for process in run.processes.values():
        process.process.send_signal(signal.SIGINT)
    run.codes()
    gone(run.folder, 10)
