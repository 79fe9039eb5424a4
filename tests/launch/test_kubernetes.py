"""What Volcano and the kubelet are asked for: TorchX's own requests on both its lines, adjusted. No cluster is there."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.lines import BOTH, ROOT, environment, interpreter, torchx
from tests.util import scaled
from torchft_x import env
from torchft_x.launch.schedulers.kubernetes import adjust
from torchft_x.launch.schedulers.role import FtRole, RoleFacts

GOLDEN = Path(__file__).parent / "golden" / "kubernetes.yaml"
VERSIONS = ("1.25", "1.30", "1.37")
PVC = ("type=volume", "src=claim", "dst=/shared")
SHARED: dict[str, Any] = {"mounts": PVC, "run_dir": "/shared/run"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in (env.TOKEN, env.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)


@functools.cache
def has_package(python: str) -> bool:
    return subprocess.run([python, "-c", "import kubernetes"], capture_output=True, check=False).returncode == 0


def need_package(line: str) -> str:
    """The interpreter of the line; TorchX makes no Kubernetes request without the ``kubernetes`` package."""
    python = interpreter(line)
    if not has_package(python):
        pytest.skip(f"{python} has no package kubernetes: pip install kubernetes")
    return python


def ask(line: str, options: dict[str, Any]) -> dict[str, Any]:
    """See kube_request.py."""
    python = need_package(line)
    if line == "this":
        from tests.launch import kube_request

        return kube_request.answer(**options)
    done = subprocess.run(
        [python, "-m", "tests.launch.kube_request", json.dumps(options)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Request:
    """A Volcano job as it would be submitted."""

    def __init__(self, job: dict, app: str = "", completing: str = "") -> None:
        self.job = job
        self.app = app  # repr of the AppDef
        self.completing = completing  # TorchX's state for that phase
        self.spec = job["spec"]
        self.tasks = {t["name"]: t for t in self.spec["tasks"]}

    def pod(self, task: str) -> dict:
        return self.tasks[task]["template"]["spec"]

    def container(self, task: str) -> dict:
        (container,) = self.pod(task)["containers"]
        return container

    def env(self, task: str) -> dict[str, Any]:
        """Plain values; for those that Kubernetes fills in, the path it takes them from."""
        pairs = self.container(task)["env"]
        assert len({e["name"] for e in pairs}) == len(pairs)
        return {e["name"]: e["value"] if "value" in e else e["valueFrom"]["fieldRef"]["fieldPath"] for e in pairs}

    def everywhere(self, name: str) -> set[Any]:
        """The values of a variable over all pods; None where it is absent."""
        return {self.env(t).get(name) for t in self.tasks}


def request(line: str = "this", **options: Any) -> Request:
    answer = ask(line, options)
    return Request(answer["job"], answer["app"], answer["completing"])


def refusal(**options: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        request(**options)
    return str(caught.value)


def check_pods(made: Request) -> None:
    """Kubernetes' own schemas, unknown fields refused."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("the package kubernetes-validate is missing: pip install kubernetes-validate")
    import kubernetes_validate

    for name, task in made.tasks.items():
        pod = {"apiVersion": "v1", "kind": "Pod"} | task["template"]
        pod["metadata"] = pod["metadata"] | {"name": name}
        for version in VERSIONS:
            kubernetes_validate.validate(pod, version, strict=True)


# --- the whole request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", BOTH)
def test_golden(line: str) -> None:
    """TORCHFT_X_REGENERATE=1 writes it anew; read the diff then."""
    made = request(line, kinds=("lighthouse", "trainer", "sidecar"), groups=2, min_replicas=1)
    text = yaml.dump(made.job, sort_keys=True)
    text = text.replace(made.env("trainer-0")[env.TOKEN], "TOKEN").replace(made.job["metadata"]["name"], "JOB")
    text = re.sub(r"(torchx\.pytorch\.org/version:) .*", r"\1 TORCHX", text)
    text = re.sub(r" *- name: TORCHX_IMAGE\n *value: .*\n", "", text)  # nightly only
    if os.environ.get("TORCHFT_X_REGENERATE") == "1" and line == "this":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("line", BOTH)
@pytest.mark.parametrize("component", ["ddp", "hsdp"])
def test_the_command_as_a_user_types_it(line: str, component: str, tmp_path: Path) -> None:
    need_package(line)
    offline = ",validate_spec=False" if line == "nightly" else ""
    words = ["run", "-s", "kubernetes", "-cfg", f"queue=default{offline}", "--workspace=", "--dryrun"]
    words += [f"./components.py:{component}", "--image", "img:1", "--replicas", "3", "--", "--steps", "5"]
    done = torchx(
        *words, line=line, HOME=str(tmp_path), KUBECONFIG=str(tmp_path / "none"), DOCKER_HOST="tcp://0.0.0.0:1"
    )
    assert done.returncode == 0, done.stderr
    head, _, text = done.stdout.partition("=== SCHEDULER REQUEST ===")
    made = Request(yaml.safe_load(text))
    check_pods(made)
    assert set(made.tasks) == {"lighthouse-0", "trainer-0", "trainer-1", "trainer-2"}
    (token,) = made.everywhere(env.TOKEN)
    assert token not in head + done.stderr
    assert made.container("trainer-2")["command"][-3:] == [f"scripts/train_{component}.py", "--steps", "5"]


@pytest.mark.parametrize("line", BOTH)
@pytest.mark.parametrize(
    "options",
    [
        {"kinds": ("lighthouse", "trainer", "sidecar"), "gpu": 8, "nodes": 2, "mounts": PVC},
        {"kinds": ("trainer",), "mounts": ("type=bind", "src=/nfs", "dst=/nfs", "readonly")},
        {"kinds": ("lighthouse",), "run_dir": "/shared/run", "mounts": PVC},
    ],
    ids=["own", "external", "stand-alone"],
)
def test_the_pods_are_valid(line: str, options: dict) -> None:
    check_pods(request(line, **options))


# --- death and outcome -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", BOTH)
def test_one_groups_death_is_its_own_and_the_lighthouse_tells_the_outcome(line: str) -> None:
    made = request(line, kinds=("lighthouse", "trainer", "sidecar"), max_retries=3)  # TorchX would restart the job
    assert made.tasks["lighthouse-0"]["policies"] == [
        {"event": "TaskCompleted", "action": "CompleteJob"},
        {"event": "PodFailed", "action": "TerminateJob"},
    ]
    assert made.pod("lighthouse-0")["restartPolicy"] == "Never"
    assert made.env("lighthouse-0")[env.REPLACED_WITHIN] == "600"
    for task in ("trainer-0", "trainer-1", "evaluator-0"):
        assert made.tasks[task]["policies"] == []
        assert made.pod(task)["restartPolicy"] == "OnFailure"
        assert made.env(task)[env.GIVE_UP_CODE] == "0"
    assert made.spec["minSuccess"] == 4  # all pods: a failed lighthouse can't be outvoted
    assert made.completing.endswith("RUNNING")


@pytest.mark.parametrize(
    ("options", "pods"),
    [
        ({"groups": 4, "min_replicas": 2}, 3),
        ({"groups": 4, "min_replicas": 2, "nodes": 2}, 5),
        ({"groups": 4, "min_replicas": 2, "kinds": ("lighthouse", "trainer", "sidecar")}, 3),
        ({"groups": 4, "min_replicas": 2, "kinds": ("trainer",)}, 2),
    ],
)
def test_the_job_starts_with_the_fewest_pods_it_can_work_with(options: dict, pods: int) -> None:
    made = request(**options)
    assert made.spec["minAvailable"] == pods
    assert all("minAvailable" not in t for name, t in made.tasks.items() if name != "evaluator-0")


def test_with_a_lighthouse_outside_the_exit_codes_of_the_groups_count() -> None:
    made = request(kinds=("trainer",), variables={env.LIGHTHOUSE: "http://lh:29510"})
    for task in ("trainer-0", "trainer-1"):
        assert made.pod(task)["restartPolicy"] == "Never"
        assert env.GIVE_UP_CODE not in made.env(task)
    assert "minSuccess" not in made.spec
    assert made.everywhere(env.TOKEN) == {None}
    assert "--disable-network-policy" in made.spec["plugins"]["svc"]  # the lighthouse is not a pod of this job


@pytest.mark.parametrize("line", BOTH)
def test_of_several_lighthouses_one_may_be_lost(line: str) -> None:
    made = request(line, lighthouses=2, groups=3, min_replicas=2, **SHARED)
    assert made.spec["minAvailable"] == 2 + 2
    assert made.spec["minSuccess"] == 2 + 3 - 1
    for place in "01":
        task = f"lighthouse-{place}"
        assert made.tasks[task]["policies"] == [
            {"event": "TaskCompleted", "action": "CompleteJob"},
            {"exitCode": 1, "action": "TerminateJob"},
        ]
        assert made.pod(task)["restartPolicy"] == "Never"
        words = made.container(task)["command"]
        assert words[words.index("--place") + 1] == place
        assert made.env(task)[env.ADVERTISE_HOST].startswith(f"{made.job['metadata']['name']}-{task}-0.")
        assert made.container(task)["ports"] == [{"containerPort": 30123, "name": "lighthouse"}]
    check_pods(made)


def test_several_lighthouses_need_a_directory_that_all_share() -> None:
    assert "--lighthouses 2 needs a run directory that all pods share" in refusal(lighthouses=2)


def test_a_stand_alone_lighthouse_stays() -> None:
    made = request(kinds=("lighthouse",), **SHARED)
    assert made.pod("lighthouse-0")["restartPolicy"] == "OnFailure"
    assert made.tasks["lighthouse-0"]["policies"] == []
    assert env.REPLACED_WITHIN not in made.env("lighthouse-0")
    assert made.container("lighthouse-0")["ports"] == [{"containerPort": 29510, "name": "lighthouse"}]
    assert "--disable-network-policy" in made.spec["plugins"]["svc"]


def test_a_lost_node_is_given_up_soon() -> None:
    made = request()
    for task in ("lighthouse-0", "trainer-1"):
        pod = made.pod(task)
        assert pod["terminationGracePeriodSeconds"] == 30
        assert {t["key"]: (t["effect"], t["operator"], t["tolerationSeconds"]) for t in pod["tolerations"]} == {
            "node.kubernetes.io/not-ready": ("NoExecute", "Exists", 5),
            "node.kubernetes.io/unreachable": ("NoExecute", "Exists", 5),
        }


# --- how they find each other ------------------------------------------------------------------------------------------


def test_every_pod_advertises_what_others_can_reach() -> None:
    made = request()
    name = made.job["metadata"]["name"]
    assert made.env("lighthouse-0")[env.ADVERTISE_HOST] == f"{name}-lighthouse-0-0.{name}"
    assert made.env("trainer-1")[env.ADVERTISE_HOST] == "status.podIP"
    assert made.env("trainer-1")[env.LIGHTHOUSE_HOST_IN] == "VC_LIGHTHOUSE_0_HOSTS"
    assert made.container("lighthouse-0")["ports"] == [{"containerPort": 30123, "name": "lighthouse"}]
    own = request(variables={env.ADVERTISE_HOST: "me.example"})
    assert own.everywhere(env.ADVERTISE_HOST) == {"me.example"}


def test_pods_that_share_no_directory_get_one_fresh_token() -> None:
    made = request(kinds=("lighthouse", "trainer", "sidecar"))
    (token,) = made.everywhere(env.TOKEN)
    assert len(token) >= 32
    assert token not in made.app
    assert made.everywhere(env.RUN_DIR) == {"/tmp/torchft_x"}
    for task in made.tasks:
        assert token not in " ".join(made.container(task)["command"])
        assert {"mountPath": "/tmp/torchft_x", "name": "torchft-x-run"} in made.container(task)["volumeMounts"]
    assert request().everywhere(env.TOKEN) != {token}
    command = made.container("trainer-0")["command"]
    assert command[command.index("--run_dir") + 1] == "/tmp/torchft_x"
    assert command[-2:] == ["--run_dir", "the script's own"]


def test_a_mounted_run_directory_is_used_and_holds_the_token() -> None:
    made = request(**SHARED)
    assert made.everywhere(env.TOKEN) == {None}
    assert made.everywhere(env.RUN_DIR) == {"/shared/run"}
    assert "torchft-x-run" not in json.dumps(made.job)


@pytest.mark.parametrize(
    "options",
    [
        {"mounts": PVC, "run_dir": "/sharedrun"},
        {"mounts": (*PVC, "readonly"), "run_dir": "/shared/run"},
        {"run_dir": "/dev/shm/run"},  # a pod's own
    ],
)
def test_what_does_not_count_as_a_shared_directory(options: dict) -> None:
    made = request(**options)
    assert made.everywhere(env.RUN_DIR) == {"/tmp/torchft_x"}
    assert made.everywhere(env.TOKEN) != {None}


def test_a_given_token_is_the_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert request(variables={env.TOKEN_FILE: "/mounted/token"}).everywhere(env.TOKEN) == {None}
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("of the file\n")
    monkeypatch.setenv(env.TOKEN_FILE, str(tmp_path / "token"))  # of the submitter: no pod sees that file
    assert request(kinds=("trainer",)).everywhere(env.TOKEN) == {"of the file"}
    monkeypatch.setenv(env.TOKEN, "from the shell")
    for options in ({}, SHARED, {"kinds": ("lighthouse",)}):
        assert request(**options).everywhere(env.TOKEN) == {"from the shell"}


# --- what is TorchX's ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", BOTH)
def test_every_role_gets_the_image_with_the_workspaces_code(line: str) -> None:
    kinds = ("lighthouse", "trainer", "sidecar")
    made = request(line, kinds=kinds, patched="repo:patched", sidecar_image="other:1")
    images = {t: made.container(t)["image"] for t in made.tasks}
    patched = dict.fromkeys(["lighthouse-0", "trainer-0", "trainer-1"], "repo:patched")
    assert images == patched | {"evaluator-0": "other:1"}
    assert {made.env(t).get("TORCHX_IMAGE", images[t]) for t in patched} == {"repo:patched"}


@pytest.mark.parametrize("line", BOTH)
def test_resources_and_mounts(line: str) -> None:
    made = request(line, gpu=8, mounts=PVC)
    for task in ("trainer-0", "trainer-1"):
        limits = made.container(task)["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["cpu"]) == ("8", "1000m")
    for task in made.tasks:
        assert {"name": "mount-0", "persistentVolumeClaim": {"claimName": "claim"}} in made.pod(task)["volumes"]
        assert any(m["mountPath"] == "/shared" for m in made.container(task)["volumeMounts"])
    lighthouse = made.container("lighthouse-0")["resources"]
    assert lighthouse["requests"] == lighthouse["limits"]


# --- what could not work ------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    assert "--image" in refusal(image="")
    assert "choose a shorter --name" in refusal(name="a" * 45)
    assert "mount --run_dir" in refusal(kinds=("lighthouse",))


def test_requests_of_another_shape_stay_as_they_are() -> None:
    role = FtRole(name="trainer", image="i", ft=RoleFacts(kind="trainer", groups=2))

    class Other:
        request: Any = None

    for resource in (None, {}, {"metadata": {}, "spec": {"tasks": None}}, {"metadata": {}, "spec": {"tasks": [{}]}}):
        info = Other()
        info.request = Other()
        info.request.resource = resource  # type: ignore[attr-defined]
        before = json.dumps(resource)
        assert adjust(role, info) is info
        assert json.dumps(resource) == before
