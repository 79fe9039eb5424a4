"""What pods of the cluster do while a node or the API server is away; that jobs train on it is in the other tests here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.extended.kubernetes.cluster import IMAGE, Cluster
from tests.extended.kubernetes.space import Space
from tests.extended.kubernetes.status import ready_word
from tests.util import wait_for

Json = dict[str, Any]
_SHELL = ["sh", "-c"]

pytestmark = [pytest.mark.timeout(90)]


@pytest.fixture
def space(kubernetes: Cluster) -> Iterator[Space]:
    made = Space(kubernetes)
    yield made
    kubernetes.api.delete(f"/api/v1/namespaces/{made.name}")


def _running(space: Space, app: str) -> Json:
    found = wait_for(lambda: space.ready(app=app), 30, f"a ready pod of {app}")
    assert found is not None
    return found


def _pod(command: list[str], **fields: Any) -> Json:
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **fields}


def _template(name: str, spec: Json) -> Json:
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def _ended(space: Space, name: str) -> Json:
    def pod() -> Json | None:
        found = space.get("pods", name)
        return found if found["status"].get("phase") in ("Succeeded", "Failed") else None

    found = wait_for(pod, 30, f"the end of {name}")
    assert found is not None
    return found


def test_a_lost_node_s_pod_is_made_again_on_the_other(space: Space) -> None:
    cluster = space.cluster
    node = cluster.add_node("node-lost", labels={"spare": "yes"})
    first = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": _labelled("spare")}]}
    tolerations = [
        {"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for k in ("not-ready", "unreachable")
    ]
    spec = _pod(["sleep", "1000"], affinity={"nodeAffinity": first}, tolerations=tolerations)
    space.make("batch/v1/jobs", "moves", spec={"template": _template("moves", spec)})
    assert _running(space, "moves")["spec"]["nodeName"] == "node-lost"
    node.lose()
    moved = wait_for(lambda: _elsewhere(space, "moves", "node-lost"), 60, "a pod elsewhere")
    assert moved["spec"]["nodeName"] in ("node-a", "node-b")
    node.start()  # its addresses are free again
    space.make("pods", "again", spec=_pod(["true"], nodeName="node-lost"))
    assert _ended(space, "again")["status"]["phase"] == "Succeeded"
    cluster.api.delete("/api/v1/nodes/node-lost")
    node.kill()


def _labelled(key: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "Exists"}]}


def _elsewhere(space: Space, app: str, node: str) -> Json | None:
    pod = space.pod(app=app)
    return pod if pod and pod["status"]["phase"] == "Running" and pod["spec"].get("nodeName") != node else None


def test_pods_run_on_while_the_api_server_is_away(space: Space) -> None:
    cluster = space.cluster
    space.make("pods", "runs", spec=_pod([*_SHELL, "sleep 2; echo done"]))
    _running(space, "runs")
    cluster.stop_api_server()
    try:
        with pytest.raises(OSError):
            cluster.api.get("/readyz")
    finally:
        cluster.start_api_server()
    assert _ended(space, "runs")["status"]["phase"] == "Succeeded"
    assert space.log("runs") == "done\n"


def test_a_pod_that_the_cluster_has_called_not_ready_says_that_it_is(space: Space) -> None:
    """As the node controller does it while a node is silent."""
    space.make("pods", "runs", spec=_pod([*_SHELL, "sleep 600"]))
    wait_for(lambda: _word(space, "runs") == "True", 20, "it to be ready")
    condition = {"type": "Ready", "status": "False"}
    at = f"{space.at('pods')}/runs/status"
    space.cluster.api.patch(at, {"status": {"conditions": [condition]}})
    wait_for(lambda: _word(space, "runs") == "True", 20, "it to be ready again")


def _word(space: Space, name: str) -> str:
    return ready_word(space.get("pods", name)["status"])
