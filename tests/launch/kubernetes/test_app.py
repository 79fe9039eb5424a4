"""The objects of our components: against Kubernetes' own schemas, and what in them keeps one group's death its own."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.specs import AppDef, Role, resource

from tests.launch.kubernetes.rendered import FOLDER, rendered
from torchft_x import env
from torchft_x.core.kubernetes import rights
from torchft_x.core.kubernetes.objects import owned
from torchft_x.core.kubernetes.parts import Wishes
from torchft_x.errors import ConfigError
from torchft_x.launch.job.build import diloco_app, ft_app, lighthouse_app
from torchft_x.launch.kubernetes import options
from torchft_x.launch.kubernetes.app import request, with_token
from torchft_x.launch.kubernetes.cluster import refusal

VERSIONS = ("1.25", "1.30", "1.37")
GPU = "nvidia.com/gpu"
EVERYTHING = Wishes(
    service_account="trainers",
    priority_class="high",
    queue="team",
    pull_secrets=("registry",),
    env_secrets=("mine",),
    node_selector={"pool": "gpus"},
    annotations={"note": "x"},
    spread="topology.kubernetes.io/zone",
    ttl=60,
    overlay={"hostNetwork": False, "containers": [{"name": "trainer", "imagePullPolicy": "Always"}]},
)

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in (env.TOKEN, env.TOKEN_FILE, env.LIGHTHOUSE):
        monkeypatch.delenv(name, raising=False)


def hsdp(**parameters: Any) -> AppDef:
    return ft_app("train.py", ["--x", "$(HOME)"], **{"image": "registry/train:7", "replicas": 2, **parameters})


def render(app: AppDef, wishes: Wishes = Wishes()) -> list[Json]:  # noqa: B008  immutable
    return request(app, "1a2b3c4d", wishes, GPU).objects


def pods(objects: list[Json], role: str) -> list[Json]:
    jobs = [o for o in objects if o["kind"] == "Job"]
    return [j["spec"]["template"]["spec"] for j in jobs if j["metadata"]["labels"]["torchft-x/role"] == role]


def variables(pod: Json) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in pod["containers"][0]["env"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_all_components_fit_the_schema(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    many = {"nodes_per_replica": 2, "workers_per_replica": 2, "gpu": 1}
    mounts = ["type=volume", "src=claim", "dst=/shared", "type=bind", "src=/data", "dst=/data", "readonly"]
    every = [
        hsdp(),
        hsdp(**many, mounts=mounts, run_dir="/shared/run"),
        hsdp(lighthouse="http://10.0.0.1:29510"),
        diloco_app("train.py", image="i:1", replicas=2),
        lighthouse_app(image="i:1", token_file="/run/token", min_replicas=1),
    ]
    for app, wishes in itertools.product(every, (Wishes(), EVERYTHING)):
        objects = render(app, wishes)
        for body in [objects[0], *owned(objects, {"metadata": {"name": "x", "uid": "1"}})]:
            validate(body, version, strict=True)
    validate(rights.role(), version, strict=True)


def test_the_examples_are_what_is_printed() -> None:
    """If the change is meant: ``python -m tests.launch.kubernetes.rendered``."""
    assert {path.stem: path.read_text() for path in FOLDER.glob("*.yaml")} == rendered()


def test_each_replica_is_a_job_of_its_own_that_does_not_end_by_failures() -> None:
    objects = render(hsdp(nodes_per_replica=2, workers_per_replica=2, gpu=1))
    jobs = [o for o in objects if o["kind"] == "Job"]
    assert [j["metadata"]["labels"].get("torchft-x/group") for j in jobs] == [None, "0", "0", "1", "1"]
    assert {j["spec"]["backoffLimit"] for j in jobs} == {1_000_000}
    for pod in pods(objects, "trainer"):
        assert pod["restartPolicy"] == "OnFailure"
        assert [t["tolerationSeconds"] for t in pod["tolerations"]] == [5, 5]
        assert pod["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "4096M", GPU: "1"}
        found = variables(pod)
        assert found[env.ADVERTISE_HOST] == "$(POD_IP)"  # peers need no name of it
        assert next(iter(found)) == "POD_IP"  # Kubernetes expands only what stands before
        assert found[env.TOKEN] == {"secretKeyRef": {"name": "ft-1a2b3c4d", "key": "token"}}
        assert pod["containers"][0]["command"][-1] == "$$(HOME)"  # the script's own
    (lighthouse,) = pods(objects, "lighthouse")
    port = lighthouse["containers"][0]["ports"][0]["containerPort"]
    assert lighthouse["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port + 10}
    assert variables(lighthouse)[env.ADVERTISE_HOST] == "ft-1a2b3c4d-lighthouse"


def test_all_groups_have_the_same_pod_but_for_its_number() -> None:
    objects = render(hsdp(env={"SHARD": "${replica_id}", "NOTE": "$(HOME)"}))
    first, second = pods(objects, "trainer")
    assert {**second, "hostname": ""} == {**first, "hostname": ""}
    assert first["containers"][0]["command"][4:6] == ["--group", "$(TORCHX_REPLICA)"]
    found = variables(first)
    assert list(found)[1] == "TORCHX_REPLICA"
    assert found["SHARD"] == "$(TORCHX_REPLICA)"
    assert found["NOTE"] == "$$(HOME)"
    (groups,) = (o["data"]["groups.json"] for o in objects if o["kind"] == "ConfigMap")
    assert json.loads(groups) == {"groups": ["0", "1"], "ended": []}
    (lighthouse,) = pods(objects, "lighthouse")
    assert lighthouse["containers"][0]["command"][-2:] == ["--groups_file", "/run/torchft_x/groups.json"]


def test_events_are_printed_where_that_is_asked_for() -> None:
    for wanted, value in ((False, None), (True, "stdout")):
        objects = render(hsdp(), Wishes(events=wanted))
        for pod in pods(objects, "trainer") + pods(objects, "lighthouse"):
            assert variables(pod).get(env.EVENTS) == value


def test_one_anchor_owns_all_and_a_finished_job_takes_all_with_it() -> None:
    objects = render(hsdp(), EVERYTHING)
    assert objects[0]["metadata"]["name"] == "ft-1a2b3c4d-lighthouse-0"
    assert [o["spec"].get("ttlSecondsAfterFinished") for o in objects if o["kind"] == "Job"] == [60, None, None]
    for body in owned(objects, {"metadata": {"name": "ft-1a2b3c4d-lighthouse-0", "uid": "u"}}):
        assert body["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert render(hsdp(lighthouse="http://10.0.0.1:29510"))[0]["kind"] == "Service"


def test_the_token_is_only_in_the_secret_and_new_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = request(hsdp(), "1", Wishes(), GPU)
    first, second = (with_token(made) for _ in range(2))
    tokens = [next(o for o in objects if o["kind"] == "Secret")["stringData"]["token"] for objects in (first, second)]
    assert tokens[0] != tokens[1]
    assert str(first).count(tokens[0]) == 1
    monkeypatch.setenv(env.TOKEN, "a-token-of-the-shell-that-submits")
    assert "a-token-of-the-shell" not in str(request(hsdp(), "1", Wishes(), GPU))
    assert "a-token-of-the-shell" in str(with_token(made))


def test_only_the_job_s_pods_reach_it_unless_its_lighthouse_is_another_s() -> None:
    own, other = render(hsdp()), render(hsdp(lighthouse="http://10.0.0.1:29510"))
    policy, of_page = (o for o in own if o["kind"] == "NetworkPolicy")
    job = {"matchLabels": {"app.kubernetes.io/instance": "ft-1a2b3c4d"}}
    assert policy["spec"]["podSelector"] == job
    (lighthouse,) = pods(own, "lighthouse")
    page = lighthouse["containers"][0]["readinessProbe"]["httpGet"]["port"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": job}]}]
    assert of_page["spec"]["podSelector"] == {"matchLabels": {**job["matchLabels"], "torchft-x/role": "lighthouse"}}
    assert of_page["spec"]["ingress"] == [{"ports": [{"port": page}]}]
    assert not [o for o in other if o["kind"] == "NetworkPolicy"]
    assert not [o for o in render(hsdp(), Wishes(network_policy=False)) if o["kind"] == "NetworkPolicy"]


def test_a_role_of_somebody_else_s_is_as_often_retried_as_it_says() -> None:
    role = Role(
        name="Main", image="i:1", entrypoint="sh", args=["-c", "x"], max_retries=3, resource=resource(cpu=1, memMB=5)
    )
    objects = render(AppDef(name="Some_App", roles=[role]))
    assert [o["kind"] for o in objects] == ["Service", "Job"]
    assert objects[1]["metadata"]["name"] == "some-app-1a2b3c4d-main-0"
    assert objects[1]["spec"]["backoffLimit"] == 3


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"env": {"WANDB_API_KEY": "x"}}, "-cfg env_secrets=mine"),
        ({"lighthouses": 2, "run_dir": "/shared"}, "leave --lighthouses out"),
    ],
)
def test_what_can_not_work_is_told_before_anything_is_made(parameters: Json, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        render(hsdp(**parameters))


def test_a_path_of_a_secret_and_another_word_for_token_are_no_secrets() -> None:
    render(hsdp(env={"MY_TOKEN": "/run/token", "TOKENIZERS_PARALLELISM": "0"}))


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        ({"grace": 0}, "-cfg grace=0: it must be a number of seconds, 1 or more"),
        ({"ttl": -2}, "-cfg ttl=-2: it must be a number of seconds, 0 or more, or -1"),
        ({"queue": "My Queue"}, "-cfg queue=My Queue: Kubernetes' names are lower case"),
        ({"overlay": "/nowhere.yaml"}, "it can't be read as YAML"),
    ],
)
def test_options_that_kubernetes_would_refuse(cfg: Json, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        options.wishes({"toleration": 5, "grace": 30, **cfg})


def test_an_overlay_may_be_a_pod_and_must_be_fields(tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", "spec": {"priority": 1}}))
    assert options.wishes({"grace": 30, "overlay": str(path)}).overlay == {"priority": 1}
    path.write_text("- a\n")
    with pytest.raises(ConfigError, match="no fields of a pod's spec"):
        options.wishes({"grace": 30, "overlay": str(path)})


def test_refusals_say_what_to_do() -> None:
    said = 'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the namespace "n"'
    assert '`- {apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}`' in refusal(403, said, "n")
    assert "ask for less" in refusal(403, "pods is forbidden: exceeded quota: q, requested: pods=1", "n")
    assert "has no namespace n" in refusal(404, 'namespaces "n" not found', "n")
    assert "log in again" in refusal(401, "Unauthorized", "n")
