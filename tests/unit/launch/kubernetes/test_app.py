"""The objects of a job: compared with golden files, which fit Kubernetes' own schemas; and what no file can show."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.specs import AppDef, Role, resource

from tests.golden import Golden
from tests.unit.launch.kubernetes import rights
from tests.unit.launch.kubernetes.restricted import violations
from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.job.build import diloco_app, ft_app, lighthouse_app
from torchft_x.launch.kubernetes.app import Request, request, with_token
from torchft_x.launch.kubernetes.cluster import refusal
from torchft_x.launch.kubernetes.rules.objects import owned
from torchft_x.launch.kubernetes.rules.parts import PodSettings
from torchft_x.launch.plugin import kubernetes as options
from torchft_x.launch.plugin.kubernetes import as_yaml

EXAMPLES = Path(__file__).parents[4] / "docs/examples/kubernetes"
PLAIN = EXAMPLES / "plain.yaml"
GOLDEN = Path(__file__).parents[1] / "golden/kubernetes_ft"
VERSIONS = ("1.25", "1.30", "1.37")
GPU = "nvidia.com/gpu"
EVERYTHING = PodSettings(
    service_account="trainers",
    priority_class="high",
    queue="team",
    pull_secrets=("registry",),
    env_secrets=("mine",),
    node_selector={"pool": "gpus"},
    annotations={"note": "x"},
    spread="topology.kubernetes.io/zone",
    ttl=60,
    events=True,
    overlay={"hostNetwork": False, "containers": [{"name": "trainer", "imagePullPolicy": "Always"}]},
)

Json = dict[str, Any]


def hsdp(**parameters: Any) -> AppDef:
    return ft_app("train.py", ["--x", "$(HOME)"], **{"image": "registry/train:7", "replicas": 2, **parameters})


def made(app: AppDef, settings: PodSettings = PodSettings()) -> Request:  # noqa: B008  immutable
    return request(app, "1a2b3c4d", settings, GPU)


def render(app: AppDef, settings: PodSettings = PodSettings()) -> list[Json]:  # noqa: B008  immutable
    return made(app, settings).objects


def examples() -> dict[str, Request]:
    """By the component's name, with the scheduler's defaults: docs/kubernetes.md shows them."""
    image = {"image": "registry/train:7"}
    job = {**image, "replicas": 2, "run_dir": "/runs/1"}
    token = {
        "securityContext": {"fsGroup": 65534},
        "volumes": [{"name": "token", "secret": {"secretName": "lighthouse", "defaultMode": 0o440}}],
        "containers": [
            {"name": "lighthouse", "volumeMounts": [{"name": "token", "mountPath": "/run/token", "readOnly": True}]}
        ],
    }
    apps = {
        "ddp": ft_app("train.py", name="ddp", **job),
        "hsdp": ft_app("train.py", name="hsdp", workers_per_replica=16, nodes_per_replica=2, gpu=8, cpu=64, **job),
        "diloco": diloco_app("train.py", name="diloco", gpu=1, **job),
        "lighthouse": lighthouse_app(name="lighthouse", token_file="/run/token/token", min_replicas=1, **image),
    }
    usual = options.settings(options.create_scheduler("s").run_opts().resolve({}))
    overlays = {"lighthouse": token}
    return {name: made(app, replace(usual, overlay=overlays.get(name, {}))) for name, app in apps.items()}


def others() -> dict[str, Request]:
    """What the examples lack."""
    mounts = ["type=volume", "src=claim", "dst=/shared", "type=bind", "src=/data", "dst=/data", "readonly"]
    many = {"nodes_per_replica": 2, "workers_per_replica": 2, "gpu": 1, "mounts": mounts, "run_dir": "/shared/run"}
    main = Role(
        name="Main", image="i:1", entrypoint="sh", args=["-c", "x"], max_retries=3, resource=resource(cpu=1, memMB=5)
    )
    return {
        "everything": made(
            hsdp(**many, replicas=1, tls="on", env={"SHARD": "${replica_id}", "NOTE": "$(HOME)"}), EVERYTHING
        ),
        # its groups are peers of other jobs' groups, so no policy of the network keeps them apart
        "external_lighthouse": made(hsdp(lighthouse="http://10.0.0.1:29510", run_dir="/r", replicas=1)),
        "role_of_somebody_else": made(AppDef(name="Some_App", roles=[main])),
    }


def plain() -> list[Json]:
    """The objects that are written by hand."""
    return list(yaml.safe_load_all(PLAIN.read_text()))


def pods(objects: list[Json], role: str) -> list[Json]:
    jobs = [o for o in objects if o["kind"] == "Job"]
    return [
        j["spec"]["template"]["spec"] for j in jobs if j["metadata"]["labels"]["app.kubernetes.io/component"] == role
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_fit_the_schemas(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    utils = importlib.import_module("kubernetes_validate.utils")
    monkeypatch.setattr(utils, "schema_contents", cache(utils.schema_contents))  # else read twice for each object
    for found in (*examples().values(), *others().values()):
        for body in [found.objects[0], *owned(found.objects, {"metadata": {"name": "x", "uid": "1"}})]:
            validate(body, version, strict=True)
    for body in (rights.role(), *plain()):
        validate(body, version, strict=True)


@pytest.mark.parametrize("component", ["ddp", "hsdp", "diloco", "lighthouse"])
def test_every_pod_is_admitted_by_the_level_restricted_and_says_whose_it_is(component: str) -> None:
    """S10: platform teams refused the objects."""
    templates = [o["spec"]["template"] for o in examples()[component].objects if o["kind"] == "Job"]
    assert templates
    for template in templates:
        assert violations(template) == []
        assert template["spec"]["automountServiceAccountToken"] is False
        assert {"startupProbe", "livenessProbe"} <= template["spec"]["containers"][0].keys()  # S5
        assert all("sizeLimit" in v["emptyDir"] for v in template["spec"]["volumes"] if "emptyDir" in v)
    for body in examples()[component].objects:
        wanted = {f"app.kubernetes.io/{n}" for n in ("name", "instance", "managed-by")}
        wanted |= {"app.kubernetes.io/component"} if body["kind"] == "Job" else set()
        assert wanted <= body["metadata"]["labels"].keys()


def test_an_image_that_must_run_as_root_can_and_a_user_is_of_all_processes() -> None:
    root = render(hsdp(), PodSettings(user=0))[-1]["spec"]["template"]
    assert set(violations(root)) == {
        "pod: runAsUser 0",
        "trainer: runAsNonRoot is not true",
        "trainer: does not drop ALL capabilities",
    }
    other = render(hsdp(), PodSettings(user=1000))[-1]["spec"]["template"]
    assert violations(other) == []
    assert other["spec"]["securityContext"]["runAsUser"] == 1000


def test_drains_take_one_pod_of_the_trainers_at_a_time() -> None:
    """With maxUnavailable or a percentage they would take none: Jobs have no scale subresource."""
    (budget,) = (o for o in examples()["hsdp"].objects if o["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 3  # of 2 groups over 2 nodes
    labels = [o["spec"]["template"]["metadata"]["labels"] for o in examples()["hsdp"].objects if o["kind"] == "Job"]
    assert sum(budget["spec"]["selector"]["matchLabels"].items() <= found.items() for found in labels) == 4
    assert not [o for o in examples()["lighthouse"].objects if o["kind"] == "PodDisruptionBudget"]


def test_golden(golden: Golden) -> None:
    made_here = {f"{name}.yaml": as_yaml(found) for name, found in examples().items()}
    golden.check_all(EXAMPLES, {**made_here, PLAIN.name: PLAIN.read_text()})
    compact = {"sort_keys": False, "default_flow_style": None, "width": 120}
    golden.check_all(
        GOLDEN, {f"{name}.yaml": yaml.safe_dump_all(found.objects, **compact) for name, found in others().items()}
    )


def test_a_token_file_that_an_example_names_is_mounted() -> None:
    """S10."""
    for found in examples().values():
        for spec in (o["spec"]["template"]["spec"] for o in found.objects if o["kind"] == "Job"):
            words, mounts = spec["containers"][0]["command"], spec["containers"][0]["volumeMounts"]
            for path in (words[i + 1] for i, word in enumerate(words) if word == "--token_file"):
                assert any(Path(path).is_relative_to(mount["mountPath"]) for mount in mounts)


def test_a_deployment_and_a_statefulset_by_hand_fit_together() -> None:
    """M8."""
    deployment, service, headless, budget, groups = plain()
    assert [o["kind"] for o in (deployment, groups)] == ["Deployment", "StatefulSet"]
    assert (deployment["spec"]["strategy"]["type"], deployment["spec"]["replicas"]) == ("Recreate", 1)
    for body, selectors in ((deployment, [service["spec"]["selector"]]), (groups, [headless["spec"]["selector"]])):
        template = body["spec"]["template"]
        assert violations(template) == []
        selectors = [*selectors, body["spec"]["selector"]["matchLabels"]]
        assert all(found.items() <= template["metadata"]["labels"].items() for found in selectors)
    assert budget["spec"]["selector"] == groups["spec"]["selector"]
    assert groups["spec"]["serviceName"] == headless["metadata"]["name"]
    (lighthouse,), (trainer,) = (body["spec"]["template"]["spec"]["containers"] for body in (deployment, groups))
    ports = {port["name"]: port["containerPort"] for port in lighthouse["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert lighthouse["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "page"}
    variables = {entry["name"]: entry for entry in trainer["env"]}
    assert variables["TORCHFT_LIGHTHOUSE"]["value"] == f"http://{service['metadata']['name']}:{ports['lighthouse']}"
    assert variables["TORCHFT_X_TOKEN"] in lighthouse["env"]
    assert f"--groups {groups['spec']['replicas']} " in trainer["command"][-1]
    assert (
        trainer["livenessProbe"]["exec"]["command"]
        == pods(render(hsdp()), "trainer")[0]["containers"][0]["livenessProbe"]["exec"]["command"]
    )


def test_all_groups_have_the_same_pod_but_for_its_number() -> None:
    """So that one more can be made of any of them."""
    objects = render(hsdp(env={"SHARD": "${replica_id}"}))
    first, second = pods(objects, "trainer")
    assert {**second, "hostname": ""} == {**first, "hostname": ""}
    variables = [variable["name"] for variable in first["containers"][0]["env"]]
    assert variables[:2] == ["POD_IP", "TORCHX_REPLICA"]  # Kubernetes expands only what stands before


def test_one_anchor_owns_all() -> None:
    for body in owned(render(hsdp()), {"metadata": {"name": "ft-1a2b3c4d-lighthouse-0", "uid": "u"}}):
        assert body["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_the_token_is_only_in_the_secret_and_new_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made(hsdp())
    first, second = (with_token(asked) for _ in range(2))
    tokens = [next(o for o in objects if o["kind"] == "Secret")["stringData"]["token"] for objects in (first, second)]
    assert tokens[0] != tokens[1]
    assert str(first).count(tokens[0]) == 1
    monkeypatch.setenv(env.TOKEN, "a-token-of-the-shell-that-submits")
    assert "a-token-of-the-shell" not in str(made(hsdp()))
    assert "a-token-of-the-shell" in str(with_token(asked))


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
        options.settings({"toleration": 5, "grace": 30, "start": 9, **cfg})


def test_an_overlay_may_be_a_pod_and_must_be_fields(tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", "spec": {"priority": 1}}))
    assert options.settings({"grace": 30, "start": 9, "overlay": str(path)}).overlay == {"priority": 1}
    path.write_text("- a\n")
    with pytest.raises(ConfigError, match="no fields of a pod's spec"):
        options.settings({"grace": 30, "start": 9, "overlay": str(path)})


def test_refusals_say_what_to_do() -> None:
    said = 'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the namespace "n"'
    assert '`- {apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}`' in refusal(403, said, "n")
    assert "ask for less" in refusal(403, "pods is forbidden: exceeded quota: q, requested: pods=1", "n")
    assert "has no namespace n" in refusal(404, 'namespaces "n" not found', "n")
    assert "log in again" in refusal(401, "Unauthorized", "n")
