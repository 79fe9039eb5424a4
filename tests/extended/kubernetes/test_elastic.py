"""`torchft_x scale`, `status` and orders for a job of kubernetes_ft on a real control plane, while it trains."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extended.kubernetes.api import ApiError
from tests.extended.kubernetes.shell import MODEL, TRIAL, Shell, handle_of
from tests.extended.kubernetes.space import Space
from tests.util import wait_for
from torchft_x.launch.kubernetes.rules import names

pytestmark = [pytest.mark.timeout(600)]
_UNTIL = "/tmp/until"  # in each pod: the step at which its group ends


def _overview(shell: Shell, handle: str) -> dict[str, Any]:
    """As `torchft_x status` gets it, without a process for each look."""
    service = f"{handle.rpartition('/')[2]}-lighthouse:page"
    time.sleep(0.2)
    try:
        return dict(shell.space.cluster.api.get(f"{shell.space.at('services')}/{service}/proxy/status.json"))
    except ApiError as e:
        if e.status != 503:  # the lighthouse is not ready
            raise
        return {"groups": []}


def _does(shell: Shell, handle: str) -> dict[str, str]:
    """By group, less those that have left."""
    return {row["group"]: row["does"] for row in _overview(shell, handle)["groups"] if row["does"] != "left"}


def _trains(shell: Shell, handle: str, groups: int) -> dict[str, Any] | None:
    """What is known, once so many train and nobody else is there."""
    trains = list(_does(shell, handle).values()) == ["trains"] * groups
    return _overview(shell, handle) if trains else None


def _submitted(shell: Shell, *words: str, cfg: str = "") -> str:
    """A handle of a job of two groups whose lighthouse serves."""
    trains = [*MODEL, "--steps", "1000000", "--pace", "0.05", "--until", _UNTIL]
    said = shell.run("--replicas", "2", *words, *TRIAL, "--", *trains, cfg=cfg)
    namespace, _, app = handle_of(said).rpartition("/")[2].partition(":")
    wait_for(lambda: shell.space.ready(**{names.ROLE: "lighthouse"}), 60, "the lighthouse")
    return f"kubernetes_ft://{namespace}/{app}"


def _started(shell: Shell, cfg: str = "") -> str:
    """A handle of a job of two groups that train."""
    handle = _submitted(shell, cfg=cfg)
    wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train")
    return handle


def test_scaled_up_and_down_while_it_trains_without_a_dropped_step(shell: Shell) -> None:
    shell.become_guest()
    shell.allow_guest()
    handle = _started(shell)
    app = handle.rpartition("/")[2]
    assert json.loads(shell.own("status", handle, "--json"))["wanted"] == ["0", "1"]
    assert "it had 2" in shell.own("scale", handle, "--replicas", "3")
    three = wait_for(lambda: _trains(shell, handle, 3), 120, "three groups that train")
    assert three["wanted"] == ["0", "1", "2"]
    assert "it had 3" in shell.own("scale", handle, "--replicas", "2")
    two = wait_for(lambda: _trains(shell, handle, 2), 60, "two groups that train")
    assert two["step"] > three["step"]
    assert two["counts"]["dropped_steps"] == 0
    assert two["counts"]["undone_steps"] == 0
    jobs = [o["metadata"]["name"] for o in shell.space.list("batch/v1/jobs")]
    assert sorted(jobs) == sorted(f"{app}-{part}" for part in ("lighthouse-0", "trainer-0", "trainer-1"))
    assert "must lie between 1" in shell.own("scale", handle, "--replicas", "0", code=2)
    # orders
    before = two["counts"]["restarts"]
    assert "Group 1 is killed by request" in shell.own("kill", "1", handle)
    wait_for(lambda: _overview(shell, handle)["counts"]["restarts"] > before, 60, "the next attempt")
    assert "Group 1 is drained by request" in shell.own("drain", "1", handle)
    wait_for(lambda: _does(shell, handle).get("1") == "drained", 60, "a drained group")
    assert "drained" in shell.own("status", handle, "--once")
    assert "Group 1 is resumed by request" in shell.own("resume", "1", handle)
    wait_for(lambda: _trains(shell, handle, 2), 60, "two groups that train")
    assert "There is no group" in shell.own("kill", "7", handle, code=1)
    shell.own("cancel", handle)
    assert "There is no job" in shell.own("status", handle, code=2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_group_given_up_on_an_unhealthy_node_is_made_again_elsewhere_and_trains_to_the_end(
    shell: Shell, nodes: int
) -> None:
    space = shell.space
    shell.become_guest()
    shell.allow_guest()
    overlay = json.loads(shell.overlay.read_text())
    overlay["containers"][1]["env"] = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    shell.overlay.write_text(json.dumps(overlay))
    excused = "" if nodes == 1 else '-o "$REPLICA_GROUP_ID" = 0'  # it has a pod on each node, too
    health = f'test "$NODE" != node-b {excused} || {{ echo no GPU 3; exit 3; }}'
    size = ("--nodes_per_replica", str(nodes), "--workers_per_replica", str(nodes))
    handle = _submitted(shell, *size, "--health", health)
    wait_for(lambda: set(_does(shell, handle).values()) == {"trains", "failed"}, 120, "a group that is given up")
    (bad,) = (group for group, does in _does(shell, handle).items() if does == "failed")
    wait_for(lambda: len(_succeeded(space)) == nodes, 60, "the end of its Jobs")
    said = shell.own("status", handle, "--once")
    assert "no GPU 3" in said
    assert f"`torchft_x scale --replicas 2 {handle}` starts group {bad} on another node than node-b." in said
    said = shell.own("scale", "--replicas", "2", handle, seconds=200)
    assert f"Started again, not on node-b: group {bad}." in said
    wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train")
    pods = [pod for pod in space.list("pods") if names.label_of(pod, names.GROUP)]
    assert {pod["spec"]["nodeName"] for pod in pods if names.label_of(pod, names.GROUP) == bad} == {"node-a"}
    # the next lighthouse knows nothing of the first end
    lighthouse = space.ready(**{names.ROLE: "lighthouse"})
    assert lighthouse is not None
    space.cluster.nodes[lighthouse["spec"]["nodeName"]].kill_container(lighthouse["metadata"]["uid"])
    wait_for(lambda: not space.ready(**{names.ROLE: "lighthouse"}), 30, "the end of the lighthouse")
    found = wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train at the next lighthouse")
    assert found is not None
    write = ["sh", "-c", f"echo {found['step'] + 200} > {_UNTIL}.new; mv {_UNTIL}.new {_UNTIL}"]
    for pod in pods:
        assert space.cluster.nodes[pod["spec"]["nodeName"]].run_in(pod["metadata"]["uid"], write) == 0
    wait_for(lambda: len(_succeeded(space)) == 1 + 2 * nodes, 120, "the end of all Jobs")
    assert "State: SUCCEEDED" in shell.say("status", handle_with_session(handle))


def _succeeded(space: Space) -> list[Any]:
    time.sleep(0.2)
    return [job for job in space.list("batch/v1/jobs") if job["status"].get("succeeded")]


@contextmanager
def _tainted(space: Space, node: str) -> Iterator[None]:
    """As a spot instance's handler does it that is told of its end."""
    at, taint = f"/api/v1/nodes/{node}", {"key": "spot/to-be-deleted", "effect": "NoExecute"}
    before = space.cluster.api.get(at)["spec"].get("taints") or []
    space.cluster.api.patch(at, {"spec": {"taints": [*before, taint]}})
    try:
        yield
    finally:
        space.cluster.api.patch(at, {"spec": {"taints": before or None}})


def _pod_of_group(space: Space, group: str) -> dict[str, Any]:
    return wait_for(lambda: space.pod(**{names.GROUP: group}), 30, f"a pod of group {group}")


def test_on_a_tainted_node_the_others_drop_nothing_and_the_logs_tell_it(shell: Shell, tmp_path: Path) -> None:
    space = shell.space
    handle = _started(shell, ",events=True")
    # a node that is about to go
    home = space.ready(**{names.ROLE: "lighthouse"})["spec"]["nodeName"]
    groups = {k: _pod_of_group(space, k) for k in ("0", "1")}
    away = {k: p for k, p in groups.items() if p["spec"]["nodeName"] != home}
    assert away
    group, pod = next(iter(away.items()))
    with _tainted(space, pod["spec"]["nodeName"]):
        uid = pod["metadata"]["uid"]
        wait_for(lambda: _pod_of_group(space, group)["metadata"]["uid"] != uid, 60, "another pod")
        found = wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train elsewhere")
        assert _pod_of_group(space, group)["spec"]["nodeName"] == home
    assert found["counts"]["dropped_steps"] == 0
    # struck, and told out of the logs
    said = shell.own("chaos", handle, "--at", "0:kill:0,3:supervisor:1")
    assert "2 faults done" in said
    wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train after that")
    run = json.loads(shell.own("report", handle, "--json"))
    assert run["steps"] > 0
    assert [(fault["kind"], fault["group"]) for fault in run["faults"]] == [("kill", "0"), ("supervisor", "1")]
    assert {loss["group"] for loss in run["losses"] if loss["by"] and loss["kind"] != "nothing"} == {"0", "1"}
    out = tmp_path / "report.html"
    shell.own("report", handle, "--out", str(out))
    assert "<html" in out.read_text()
    log = shell.say("log", f"{handle_with_session(handle)}/trainer/0")
    assert "step" in log
    assert '{"t":' not in log
    logs = tmp_path / "collected.log"
    logs.write_text(space.log(_pod_of_group(space, "0")["metadata"]["name"]))
    assert json.loads(shell.own("report", str(logs), "--json"))["steps"] > 0
    assert "no kind of fault" in shell.own("chaos", handle, "--at", "0:nothing", code=2)
    assert "'hang'" in shell.own("chaos", handle, "--at", "0:hang", code=2)


def handle_with_session(handle: str) -> str:
    """As TorchX's own commands take it."""
    return "kubernetes_ft://torchx/{}:{}".format(*handle.removeprefix("kubernetes_ft://").split("/"))
