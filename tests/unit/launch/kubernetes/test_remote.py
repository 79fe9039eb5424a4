"""What is asked of a cluster about a running job, and what becomes of its answers."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.kubernetes.answering import Answer, Request, answering
from tests.unit.launch.kubernetes.rules.test_scale import BAD, OVER, _ended, _job, _jobs
from tests.unit.launch.kubernetes.rules.test_state import RUNS, event, pod
from tests.unit.observe.written import Log, killed
from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.errors import ConfigError, RefusedError, UnreachableError
from torchft_x.launch.kubernetes import commands, jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.remote import Pods, Remote, check_faults
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.plugin.kubernetes import create_scheduler
from torchft_x.launch.run_commands import chaos
from torchft_x.launch.status.commands import order, status
from torchft_x.observe.run import read_run
from torchft_x.observe.run.collected import write_run

Json = dict[str, Any]
PAGE = "/api/v1/namespaces/team/services/a-1-lighthouse:page/proxy"


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(commands, "POLL", 0.0)
    return tmp_path / "kubeconfig"


def _refused(code: int, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "message": message, "code": code}


def test_a_page_that_takes_the_api_server_s_name_for_a_foreign_one_is_asked_again(kubeconfig: Path) -> None:
    def answer(asked: Request) -> tuple[int, Any]:
        return (200, {"step": 7}) if asked.headers["host"] == "localhost" else (421, "another host")

    with answering(answer, kubeconfig) as asked:
        assert Remote("kubernetes_ft://a-1").overview() == {"step": 7}
    assert [(a.method, a.path) for a in asked] == [("GET", f"{PAGE}/status.json")] * 2
    assert asked[0].headers["authorization"] == "Bearer of-the-api-server"


def test_an_order_carries_the_token_of_the_secret_beside_the_api_server_s(kubeconfig: Path) -> None:
    def answer(asked: Request) -> tuple[int, Any]:
        if asked.path.endswith("/secrets/a-1"):
            return 200, {"data": {"token": base64.b64encode(b"of-the-run").decode()}}
        return 200, {"done": "Killed."}

    with answering(answer, kubeconfig) as asked:
        assert Remote("kubernetes_ft://a-1").order("kill", "1") == "Killed."
        assert Remote("kubernetes_ft://a-1", "given").order("drain", "1")
    kill, drain = asked[1], asked[2]
    assert (kill.method, kill.path, kill.body) == ("POST", f"{PAGE}/kill", {"group": "1"})
    assert (kill.headers["x-torchft-x-token"], kill.headers["authorization"]) == (
        "of-the-run",
        "Bearer of-the-api-server",
    )
    assert (drain.path, drain.headers["x-torchft-x-token"]) == (f"{PAGE}/drain", "given")


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        ((409, {"error": "Group 1 is not drained."}), RefusedError, "Group 1 is not drained"),
        ((401, {"error": "The run's token is wrong or missing."}), RefusedError, "token is wrong"),
        ((502, {"error": "a group server does not answer"}), UnreachableError, "does not answer"),
        ((502, "<html>a proxy's words</html>"), UnreachableError, "a proxy's words"),
        (_refused(503, "no endpoints available for service"), ClusterError, "no endpoints available"),
        (
            _refused(
                403, 'services "a" is forbidden: User "me" cannot create resource "services/proxy" in API group ""'
            ),
            ClusterError,
            r'resources: \["services/proxy"\], verbs: \["create"\]',
        ),
    ],
)
def test_refusals_are_told_apart(kubeconfig: Path, answer: Any, error: type[Exception], sentence: str) -> None:
    with answering(lambda _: answer, kubeconfig), pytest.raises(error, match=sentence):
        Remote("kubernetes_ft://a-1", "t").order("resume", "1")


def test_a_secret_without_a_token_is_a_sentence(kubeconfig: Path) -> None:
    with answering(lambda _: (200, {"data": {}}), kubeconfig), pytest.raises(ConfigError, match="--token_file"):
        Remote("kubernetes_ft://a-1").order("kill", "1")


def test_a_refused_object_removes_what_was_made_and_names_the_rule(kubeconfig: Path) -> None:
    said = 'secrets is forbidden: User "me" cannot create resource "secrets" in API group "" in the namespace "team"'

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.path.endswith("/secrets"):
            return _refused(403, said)
        return 200, {"metadata": {"name": "a-1-lighthouse-0", "uid": "u"}}

    objects = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for kind, name in _MADE]
    with answering(answer, kubeconfig) as asked, pytest.raises(ClusterError, match="needs the rule"):
        jobs.submit(Cluster(), objects)
    assert [(a.method, a.path.partition("?")[0].rpartition("/")[2]) for a in asked] == [
        ("POST", "jobs"),
        ("POST", "secrets"),
        ("DELETE", "a-1-lighthouse-0"),
    ]
    assert asked[1].body["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_a_cluster_that_is_too_old_for_budgets_gets_none(kubeconfig: Path) -> None:
    """policy/v1 is of Kubernetes 1.21."""

    def answer(asked: Request) -> tuple[int, Any]:
        if "/policy/" in asked.path:
            return 404, "404 page not found"
        return 200, {"metadata": {"name": "a-1-lighthouse-0", "uid": "u"}}

    made = (_MADE[0], ("PodDisruptionBudget", "a-1"), ("Job", "a-1-trainer-0"))
    objects = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for kind, name in made]
    with answering(answer, kubeconfig) as asked:
        jobs.submit(Cluster(), objects)
    assert [a.path.rpartition("/")[2] for a in asked] == ["jobs", "poddisruptionbudgets", "jobs"]


_MADE = (("Job", "a-1-lighthouse-0"), ("Secret", "a-1"), ("Service", "a-1"))


def _cluster(job_list: list[Json], pods: list[Json], page: Any = (200, {}), **logs: str) -> Answer:
    """`page`: what the lighthouse answers. `logs`: by the pod's name, with _ for -."""

    def answer(asked: Request) -> tuple[int, Any]:
        if "/proxy/" in asked.path:
            return page
        *_, name, kind = asked.path.partition("?")[0].split("/")
        if kind == "log":
            return 200, logs[name.replace("-", "_")]
        return 200, {"items": {"jobs": job_list, "pods": pods}.get(kind, [])}

    return answer


def _lighthouse() -> Json:
    found = pod("lighthouse", **{"state": {"running": {}}})
    found["metadata"]["name"] = "a-1-lighthouse-0-x"
    return found


def test_who_can_be_struck_and_how(kubeconfig: Path) -> None:
    trainer, leaving, waits = (pod("trainer", k, made=k, **{"state": {"running": {}}}) for k in (1, 2, 3))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-25T12:01:00Z"
    waits["status"]["containerStatuses"][0]["state"] = {"waiting": {}}
    page = 409, {"error": "No process of group 1 runs now."}
    with answering(_cluster([], [_lighthouse(), trainer, leaving, waits], page), kubeconfig) as asked:
        pods = Pods(Remote("kubernetes_ft://team/a-1", "t"))
        lighthouse, supervisor, worker = pods.living()
        assert str(worker) == "worker 0 of group 1 (pod p-1)"
        assert str(lighthouse) == "lighthouse (pod a-1-lighthouse-0-x)"
        assert pods.strike(supervisor, "supervisor")
        assert pods.strike(worker, "drain")
        assert not pods.strike(worker, "kill")
    at_once, drained = (a for a in asked if a.method == "DELETE")
    assert "gracePeriodSeconds=0" in at_once.path
    assert "gracePeriodSeconds" not in drained.path
    with pytest.raises(ConfigError, match="'hang' is none of them"):
        check_faults(["kill", "hang"])


def test_a_fault_outlives_the_pod_and_the_report_names_what_came_of_it(kubeconfig: Path, tmp_path: Path) -> None:
    killed(tmp_path / "written")
    logs = {f"p_{k}": path.read_text() for k, path in enumerate((tmp_path / "written/events").iterdir())}
    pods = [pod("trainer", k, made=k, **RUNS) for k in range(len(logs))]
    elsewhere = Log(tmp_path, "chaos", 99, uptime=7000.0)
    fault = elsewhere.line(9.98, "fault", kind="supervisor", group="1", victim="p-1", number=1)
    kept = _jobs(2)
    kept[0]["metadata"]["annotations"][f"{names.FAULT}9980-1"] = fault
    with answering(_cluster(kept, pods, **logs), kubeconfig):
        write_run(Remote("kubernetes_ft://team/a-1").events(), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run is not None
    assert [(loss.group, loss.kind, loss.by and loss.by.kind) for loss in run.losses] == [("1", "died", "supervisor")]
    assert run.unreadable == 0


def test_without_events_of_pods_there_is_nothing_to_report(kubeconfig: Path) -> None:
    job_list = _jobs(1)
    job_list[0]["metadata"]["annotations"][f"{names.FAULT}1-1"] = '{"t":1.0,"mono":1.0,"event":"fault"}'
    with answering(_cluster(job_list, [pod("trainer", 0, **RUNS)], p_0="step 1\n"), kubeconfig):
        assert list(Remote("kubernetes_ft://team/a-1").events()) == []


@pytest.mark.parametrize("allowed", [True, False])
def test_chaos_writes_to_the_job_what_it_did(
    allowed: bool, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    others = _cluster(_jobs(2), [pod("trainer", 1, made=1, **RUNS)])
    said = 'jobs.batch "a" is forbidden: User "me" cannot patch resource "jobs" in API group "batch"'
    with answering(
        lambda asked: others(asked) if allowed or asked.method != "PATCH" else _refused(403, said), kubeconfig
    ) as asked:
        assert chaos(["kubernetes_ft://team/a-1", "--at", "0:supervisor:1"]) == 0
    out, err = capsys.readouterr()
    assert "1 fault done" in out
    if not allowed:
        assert "no report will name fault 1" in err
        assert 'verbs: ["patch"]' in err
        return
    assert err == ""
    ((name, text),) = (item for a in asked if a.method == "PATCH" for item in a.body["metadata"]["annotations"].items())
    assert name.startswith(names.FAULT)
    assert {
        "role": "chaos",
        "event": "fault",
        "kind": "supervisor",
        "group": "1",
        "victim": "p-1",
    }.items() <= json.loads(text).items()


def test_all_that_a_pod_has_printed_with_the_container_before(kubeconfig: Path) -> None:
    again = pod("trainer", 1, **{"state": {"running": {}}, "restartCount": 2})
    again["metadata"]["labels"][names.ROLE] = "trainer"

    def answer(asked: Request) -> tuple[int, Any]:
        return 200, "before\n" if "previous=True" in asked.path else "now\n"

    with answering(answer, kubeconfig):
        assert list(jobs.written(Cluster(), again)) == ["before\n", "now\n"]
        again["status"]["containerStatuses"][0]["restartCount"] = 0
        assert list(jobs.written(Cluster(), again)) == ["now\n"]


def test_a_group_is_made_when_the_lighthouse_knows_it_and_not_before(kubeconfig: Path) -> None:
    known = [["0", "1"], ["0", "1"], ["0", "1", "2"]]
    others = _cluster(_jobs(2), [_lighthouse()])
    with answering(
        lambda asked: (200, {"wanted": known.pop(0)}) if "/proxy/" in asked.path else others(asked), kubeconfig
    ) as asked:
        assert commands.resize("kubernetes_ft://team/a-1", 3) == ("a-1", 2)
    changes = [(a.method, a.path.rpartition("/")[2]) for a in asked if a.method != "GET"]
    assert changes == [("PATCH", "a-1"), ("PATCH", "a-1-lighthouse-0-x"), ("PATCH", "a-1"), ("POST", "jobs")]
    assert asked[-1].method == "POST"
    note, settled, budget = (a.body for a in asked if a.method == "PATCH")
    assert '"groups": ["0", "1", "2"]' in note["data"]["groups.json"]
    assert budget == {"spec": {"minAvailable": 2}}
    assert settled == {"metadata": {"annotations": {names.GROUPS: "3"}}}


def test_a_group_of_an_unhealthy_host_is_made_again_when_the_lighthouse_has_forgotten_it(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [["0", "1"], ["0"], ["0"], ["0", "1"]]
    others = _cluster([*_jobs(1), _job("trainer", 1, **OVER)], [_lighthouse(), _ended(1, f"failed: {BAD}")])

    def answer(asked: Request) -> tuple[int, Any]:
        if "/proxy/" in asked.path:
            return 200, {"wanted": known.pop(0)}
        if asked.method == "PATCH" and "/configmaps/" in asked.path:
            return 200, {"data": {"unhealthy-n1": "earlier", **asked.body["data"]}}
        return others(asked)

    with answering(answer, kubeconfig) as asked:
        assert main(["scale", "--replicas", "2", "kubernetes_ft://team/a-1"]) == 0
    said = capsys.readouterr().out
    assert said == "Started again, not on n2: group 1.\nThe job a-1 has 2 groups now; it had 2.\n"
    assert known == []
    changes = [(a.method, a.path.partition("?")[0].rpartition("/")[2]) for a in asked if a.method != "GET"]
    announced = [("PATCH", "a-1"), ("PATCH", "a-1-lighthouse-0-x")]
    assert changes == [*announced, *announced, ("PATCH", "a-1"), ("DELETE", "a-1-trainer-1"), ("POST", "jobs")]
    (term,) = asked[-1].body["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [rule["values"] for rule in term["matchFields"]] == [["n1"], ["n2"]]


def test_status_names_the_command_for_a_group_of_an_unhealthy_host(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [*_jobs(1), _job("trainer", 1, **OVER)]
    with answering(_cluster(found, [_ended(1, f"failed: {BAD}")], (200, {})), kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 0
        said = "`torchft_x scale --replicas 2 kubernetes_ft://{}a-1` starts group 1 on another node than n2."
        assert said.format("team/") in capsys.readouterr().out.splitlines()
        response = create_scheduler("s").describe("team:a-1")
    assert response is not None
    assert response.msg.endswith(said.format("torchx/team:"))


def test_a_lighthouse_that_does_not_hear_of_it_changes_nothing(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_HEARD", 0.1)
    with (
        answering(_cluster(_jobs(3), [], (200, {"wanted": ["0", "1", "2"]})), kubeconfig) as asked,
        pytest.raises(ClusterError, match=r"it has the groups .* nothing was made or deleted"),
    ):
        commands.resize("kubernetes_ft://team/a-1", 2)
    assert {a.method for a in asked} == {"GET", "PATCH"}


def test_status_and_orders_of_a_job_that_is_over_or_none(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = _jobs(1)
    over[0]["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "it had enough"}]}
    with answering(_cluster(over, []), kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 0
        assert "failed with code 1: it had enough." in capsys.readouterr().out
        assert order("kill", ["1", "kubernetes_ft://team/a-1"]) == 2
        assert "Nothing of the job a-1 runs any more" in capsys.readouterr().err
    with answering(_cluster([], []), kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 2
        assert "no job a-1 in the namespace team" in capsys.readouterr().err


@pytest.mark.parametrize("allowed", [True, False])
def test_status_says_why_pods_wait_also_before_there_is_a_lighthouse(
    allowed: bool, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S7. Whoever may not list events is told the rest."""
    waits = pod("trainer", phase="Pending")
    found = event("Pod", "p-0", "FailedMount", "no such volume", 10)
    others = _cluster(_jobs(1), [waits], _refused(503, "no endpoints available"))

    def answer(asked: Request) -> tuple[int, Any]:
        if "/events" not in asked.path:
            return others(asked)
        return (200, {"items": [found]}) if allowed else _refused(403, "events is forbidden")

    with answering(answer, kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 1
    out, err = capsys.readouterr()
    assert "waits: trainer/0: its container has not begun" in out
    assert ("the cluster warns: no such volume" in out) is allowed
    assert "no endpoints available" in err


def test_the_log_of_all_pods_of_a_replica_the_oldest_first(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = pod("trainer", 1, phase="Failed", made=1, **{"state": {"terminated": {"exitCode": 1}}})
    newest = pod("trainer", 1, made=2, **RUNS)
    logs = {"p_1": "first\n", "p_2": "second\n"}
    with answering(_cluster([], [newest, failed], **logs), kubeconfig) as asked:
        assert main(["log", "kubernetes_ft://team/a-1/trainer/1"]) == 0
        assert capsys.readouterr().out == "first\nsecond\n"
        assert "replica%3D1" in asked[0].path
    with answering(_cluster([], []), kubeconfig):
        assert main(["log", "kubernetes_ft://team/a-1/trainer/2"]) == 2
        assert "no pod of trainer/2" in capsys.readouterr().err
        assert main(["log", "kubernetes_ft://team/a-1"]) == 2
        assert "names no replica" in capsys.readouterr().err
