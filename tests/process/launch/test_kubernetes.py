"""What Volcano and the kubelet are asked for: TorchX's own requests on both its lines, adjusted. No cluster is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden import Golden
from tests.unit.launch.kube import SHARED, Request, need_package, request
from tests.unit.launch.lines import BOTH, torchx
from torchft_x import env

GOLDEN = Path(__file__).parents[2] / "unit/launch/golden/kubernetes"
VERSIONS = ("1.25", "1.30", "1.37")
REQUESTS: dict[str, dict[str, Any]] = {
    # one group's death is its own, the lighthouse tells the outcome, and all pods must have succeeded: TorchX's retries,
    # which would restart the whole job, go. A lost node is given up soon. Pods get one fresh token; the lighthouse is
    # advertised by its name, the others by their address
    "own_lighthouse": {"kinds": ("lighthouse", "trainer", "sidecar"), "max_retries": 3},
    # of several one may be lost: only the exit code of a verdict ends the job. The shared directory holds the token
    "several_lighthouses": {"lighthouses": 2, "min_replicas": 2, "gpu": 8, **SHARED},
    # the exit codes of the groups count, and no policy of the network keeps them from a lighthouse outside of the job
    "external_lighthouse": {
        "kinds": ("trainer",),
        "groups": 1,
        "mounts": ("type=bind", "src=/nfs", "dst=/nfs", "readonly"),
        "variables": {env.LIGHTHOUSE: "http://lh:29510"},
    },
    # it stays: the kubelet starts it again
    "lighthouse_alone": {"kinds": ("lighthouse",), **SHARED},
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in (env.TOKEN, env.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)


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
@pytest.mark.parametrize("name", REQUESTS)
def test_golden(name: str, line: str, golden: Golden) -> None:
    made = request(line, **REQUESTS[name])
    check_pods(made)
    text = yaml.dump(made.job, sort_keys=True, default_flow_style=None, width=120)
    text = text.replace(made.job["metadata"]["name"], "JOB")
    (token,) = made.everywhere(env.TOKEN)
    text = text.replace(token, "TOKEN") if token else text
    text = re.sub(r"(torchx\.pytorch\.org/version:) [^,}]*", r"\1 TORCHX", text)
    text = re.sub(r" *- \{name: TORCHX_IMAGE, .*\n", "", text)  # nightly only
    golden.check(GOLDEN / f"{name}.yaml", text)


@pytest.mark.parametrize("line", BOTH)
def test_the_command_as_a_user_types_it(line: str, tmp_path: Path) -> None:
    need_package(line)
    offline = ",validate_spec=False" if line == "nightly" else ""
    words = ["run", "-s", "kubernetes", "-cfg", f"queue=default{offline}", "--workspace=", "--dryrun"]
    words += ["./components.py:hsdp", "--image", "img:1", "--replicas", "3", "--", "--steps", "5"]
    done = torchx(
        *words, line=line, HOME=str(tmp_path), KUBECONFIG=str(tmp_path / "none"), DOCKER_HOST="tcp://0.0.0.0:1"
    )
    assert done.returncode == 0, done.stderr
    head, _, text = done.stdout.partition("=== SCHEDULER REQUEST ===")
    made = Request(yaml.safe_load(text))
    assert set(made.tasks) == {"lighthouse-0", "trainer-0", "trainer-1", "trainer-2"}
    (token,) = made.everywhere(env.TOKEN)
    assert token not in head + done.stderr
    assert made.container("trainer-2")["command"][-3:] == ["scripts/train_hsdp.py", "--steps", "5"]


# --- death and outcome -------------------------------------------------------------------------------------------------


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


# --- what is TorchX's ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", BOTH)
def test_every_role_gets_the_image_with_the_workspaces_code(line: str) -> None:
    kinds = ("lighthouse", "trainer", "sidecar")
    made = request(line, kinds=kinds, patched="repo:patched", sidecar_image="other:1")
    images = {t: made.container(t)["image"] for t in made.tasks}
    patched = dict.fromkeys(["lighthouse-0", "trainer-0", "trainer-1"], "repo:patched")
    assert images == patched | {"evaluator-0": "other:1"}
    assert {made.env(t).get("TORCHX_IMAGE", images[t]) for t in patched} == {"repo:patched"}
