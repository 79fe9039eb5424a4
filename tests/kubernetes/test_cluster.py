"""The cluster that other tests stand on: what is real in it, and what its small kubelet does as a real one would."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.api import ApiError
from tests.kubernetes.cluster import IMAGE, Cluster
from tests.kubernetes.space import Space
from tests.kubernetes.status import ready_word
from tests.util import wait_for

Json = dict[str, Any]
_SHELL = ["sh", "-c"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture
def space(kubernetes: Cluster) -> Iterator[Space]:
    made = Space(kubernetes)
    yield made
    kubernetes.api.delete(f"/api/v1/namespaces/{made.name}")


def _running(space: Space, app: str) -> Json:
    found = wait_for(lambda: space.ready(app=app), 30, f"a ready pod of {app}")
    assert found is not None
    return found


def _container(command: list[str], **fields: Any) -> Json:
    return {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command, **fields}


def _pod(command: list[str], *, policy: str = "Never", pod: Json | None = None, **fields: Any) -> Json:
    spec = {"restartPolicy": policy, "terminationGracePeriodSeconds": 5, "containers": [_container(command, **fields)]}
    return {**spec, **(pod or {})}


def _template(name: str, spec: Json) -> Json:
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def test_a_job_whose_pod_fails_gets_another_and_its_log_can_be_read(space: Space) -> None:
    spec = _pod([*_SHELL, "echo tried on $(NODE); exit 3"], env=[_field("NODE", "spec.nodeName")])
    space.make("batch/v1/jobs", "fails", spec={"backoffLimit": 1, "template": _template("fails", spec)})
    pods = wait_for(lambda: _all_failed(space.list("pods"), 2), 60, "two failed pods")
    for pod in pods:
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert space.log(pod["metadata"]["name"]) == f"tried on {pod['spec']['nodeName']}\n"
    condition = wait_for(lambda: space.get("batch/v1/jobs", "fails")["status"].get("conditions"), 30, "the job's end")
    assert condition[0]["reason"] == "BackoffLimitExceeded"


def _all_failed(pods: list[Json], count: int) -> list[Json]:
    return pods if len(pods) == count and all(p["status"]["phase"] == "Failed" for p in pods) else []


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_a_deleted_pod_drains_on_sigterm_and_is_replaced(space: Space) -> None:
    script = "trap 'echo drained; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    spec = _pod([*_SHELL, script])
    space.make("batch/v1/jobs", "stays", spec={"backoffLimit": 0, "template": _template("stays", spec)})
    first = _running(space, "stays")["metadata"]["name"]
    wait_for(lambda: space.log(first) == "here\n", 10, "its log")
    with _following(space, first) as lines:
        space.delete("pods", first)
        assert lines() == "here\ndrained\n"
    second = _running(space, "stays")["metadata"]
    assert second["name"] != first
    wait_for(lambda: not _exists(space, first), 10, "the end of the first")


@contextmanager
def _following(space: Space, pod: str) -> Iterator[Callable[[], str]]:
    """`kubectl logs -f`; what is yielded waits for its end, and returns what it printed."""
    words = ["--kubeconfig", str(space.cluster.kubeconfig), "-n", space.name, "logs", "-f", pod]
    command = [str(space.cluster.program("kubectl")), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()  # it follows
        try:
            yield lambda: first + child.communicate(timeout=30)[0]
        finally:
            child.kill()


def _exists(space: Space, pod: str) -> bool:
    return any(p["metadata"]["name"] == pod for p in space.list("pods"))


def test_what_a_container_is_given(space: Space) -> None:
    space.make("secrets", "token", stringData={"value": "s3cret"})
    script = (
        "echo $(SECRET) $POD_IP $A; cat /run/token/value; echo; ls -l /run/token | tail -1 | cut -c1-10; "
        "id -u; hostname; grep -c $POD_IP /etc/hosts; touch /scratch/x && echo wrote; touch /x 2>/dev/null || echo refused"
    )
    env = [
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}},
        _field("POD_IP", "status.podIP"),
        {"name": "A", "value": "$(POD_IP)!"},
    ]
    volumes = [{"name": "token", "secret": {"secretName": "token"}}, {"name": "scratch", "emptyDir": {}}]
    mounts = [{"name": "token", "mountPath": "/run/token"}, {"name": "scratch", "mountPath": "/scratch"}]
    pod = {"volumes": volumes, "hostname": "first", "securityContext": {"runAsUser": 1000}}
    fields = {"env": env, "volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": True}}
    spec = _pod([*_SHELL, script], pod=pod, **fields)
    space.make("pods", "given", spec=spec)
    found = wait_for(lambda: _ended(space.get("pods", "given")), 30, "its end")
    address = found["status"]["podIP"]
    assert space.log("given").split("\n") == [
        *(f"s3cret {address} {address}!", "s3cret", "-rw-r--r--", "1000", "first", "1", "wrote", "refused", "")
    ]


def _ended(pod: Json) -> Json | None:
    return pod if pod["status"].get("phase") in ("Succeeded", "Failed") else None


def test_a_service_leads_by_its_name_to_the_pod_that_is_ready(space: Space) -> None:
    serve = "sleep 0.5; exec python3 -m http.server 8000"
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    spec = _pod([*_SHELL, serve], policy="Always", readinessProbe=probe, pod={"hostname": "w", "subdomain": "all"})
    space.make("services", "all", spec={"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 8000}]})
    space.make("services", "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]})
    template = _template("web", spec)
    selector = {"matchLabels": {"app": "web"}}
    space.make("apps/v1/deployments", "web", spec={"replicas": 1, "selector": selector, "template": template})
    first = _running(space, "web")["metadata"]["name"]
    ask = "import urllib.request as r; [print(r.urlopen(u, timeout=5).status) for u in ('http://web', 'http://w.all:8000')]"
    space.make("pods", "asks", spec=_pod(["python3", "-c", ask], policy="OnFailure"))
    wait_for(lambda: _ended(space.get("pods", "asks")), 30, "both answers")
    assert space.log("asks").endswith("200\n200\n")
    space.delete("pods", first)
    second = _running(space, "web")["metadata"]["name"]
    assert second != first
    space.make("pods", "again", spec=_pod(["python3", "-c", ask], policy="OnFailure"))
    wait_for(lambda: _ended(space.get("pods", "again")), 30, "answers of the second")


def test_an_image_that_is_not_there_is_told(space: Space) -> None:
    pod = _pod(["true"])
    pod["containers"][0].update(image="registry.example/none:1", imagePullPolicy="IfNotPresent")
    space.make("pods", "pulls", spec=pod)
    reasons = lambda: {e["reason"]: e["message"] for e in space.list("events")}  # noqa: E731
    wait_for(lambda: "BackOff" in reasons(), 20, "the event")
    assert "registry.example/none:1" in reasons()["Failed"]
    state = space.get("pods", "pulls")["status"]["containerStatuses"][0]["state"]
    assert state["waiting"]["reason"] == "ImagePullBackOff"


def test_a_container_that_crashes_again_and_again_is_kept_waiting(space: Space) -> None:
    space.make("pods", "crashes", spec=_pod([*_SHELL, "exit 1"], policy="OnFailure"))
    status = lambda: (space.get("pods", "crashes")["status"].get("containerStatuses") or [{}])[0]  # noqa: E731
    wait_for(
        lambda: status().get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff", 20, "the back-off"
    )
    assert status()["restartCount"] == 1
    assert status()["lastState"]["terminated"]["exitCode"] == 1


def test_a_lost_node_s_pod_is_made_again_on_the_other(space: Space) -> None:
    cluster = space.cluster
    node = cluster.add_node("node-lost", labels={"spare": "yes"})
    first = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": _labelled("spare")}]}
    tolerations = [
        {"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for k in ("not-ready", "unreachable")
    ]
    spec = _pod(["sleep", "1000"], pod={"affinity": {"nodeAffinity": first}, "tolerations": tolerations})
    space.make("batch/v1/jobs", "moves", spec={"template": _template("moves", spec)})
    assert _running(space, "moves")["spec"]["nodeName"] == "node-lost"
    node.lose()
    moved = wait_for(lambda: _elsewhere(space, "moves", "node-lost"), 60, "a pod elsewhere")
    assert moved["spec"]["nodeName"] in ("node-a", "node-b")
    node.start()  # its addresses are free again
    space.make("pods", "again", spec=_pod(["true"], pod={"nodeName": "node-lost"}))
    assert _ended_well(space, "again")
    cluster.api.delete("/api/v1/nodes/node-lost")
    node.kill()


def _ended_well(space: Space, pod: str) -> bool:
    found = wait_for(lambda: _ended(space.get("pods", pod)), 30, f"the end of {pod}")
    return found is not None and found["status"]["phase"] == "Succeeded"


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
    pod = wait_for(lambda: _ended(space.get("pods", "runs")), 30, "its end")
    assert pod["status"]["phase"] == "Succeeded"
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


def test_who_may_nothing_is_told_so(space: Space) -> None:
    api = space.cluster.api._replace(token=space.cluster.token("guest"))
    with pytest.raises(ApiError, match='cannot list resource \\\\"pods\\\\"'):
        api.get(f"/api/v1/namespaces/{space.name}/pods")
