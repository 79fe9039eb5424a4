"""What Volcano and the kubelet are asked for: TorchX's own requests on both its lines, adjusted. No cluster is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.kube import PVC, SHARED, request
from tests.util import write_secret
from torchft_x import env
from torchft_x.launch.schedulers.kubernetes import adjust
from torchft_x.launch.schedulers.role import FtRole, RoleFacts


def refusal(**options: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        request(**options)
    return str(caught.value)


# --- how they find each other ------------------------------------------------------------------------------------------


def test_a_host_that_is_given_is_advertised() -> None:
    assert request(variables={env.ADVERTISE_HOST: "me.example"}).everywhere(env.ADVERTISE_HOST) == {"me.example"}


def test_pods_that_share_no_directory_get_one_fresh_token() -> None:
    made = request(kinds=("lighthouse", "trainer", "sidecar"))
    (token,) = made.everywhere(env.TOKEN)
    assert len(token) >= 32
    assert token not in made.app
    assert made.everywhere(env.RUN_DIR) == {"/tmp/torchft_x/run"}
    for task in made.tasks:
        assert token not in " ".join(made.container(task)["command"])
        assert {"mountPath": "/tmp/torchft_x", "name": "torchft-x-run"} in made.container(task)["volumeMounts"]
    assert request().everywhere(env.TOKEN) != {token}
    command = made.container("trainer-0")["command"]
    assert command[command.index("--run_dir") + 1] == "/tmp/torchft_x/run"
    assert command[-2:] == ["--run_dir", "the script's own"]


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, True),
        ({"kinds": ("trainer",), "variables": {env.TOKEN: "by --env"}}, True),
        ({"variables": {env.TOKEN_FILE: "/mounted/token"}}, False),
        (SHARED, False),  # the lighthouse makes a file there
    ],
)
def test_a_token_that_whoever_reads_pods_can_read_is_told_of(
    capsys: pytest.CaptureFixture[str], options: dict, warns: bool
) -> None:
    """T3. Once for a job, whatever roles it has."""
    made = request(**{"kinds": ("lighthouse", "trainer", "sidecar"), **options})
    said = capsys.readouterr().err
    assert said.count("the run's token is a plain value in the pods of this job") == warns
    assert all(token not in said for token in made.everywhere(env.TOKEN) if token)


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
    assert made.everywhere(env.RUN_DIR) == {"/tmp/torchft_x/run"}
    assert made.everywhere(env.TOKEN) != {None}


def test_a_given_token_is_the_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert request(variables={env.TOKEN_FILE: "/mounted/token"}).everywhere(env.TOKEN) == {None}
    write_secret(tmp_path / "token", "of the file\n")
    monkeypatch.setenv(env.TOKEN_FILE, str(tmp_path / "token"))  # of the submitter: no pod sees that file
    assert request(kinds=("trainer",)).everywhere(env.TOKEN) == {"of the file"}
    monkeypatch.setenv(env.TOKEN, "from the shell")
    for options in ({}, SHARED, {"kinds": ("lighthouse",)}):
        assert request(**options).everywhere(env.TOKEN) == {"from the shell"}


def test_a_phase_that_torchx_has_no_name_for_is_one_that_goes_on() -> None:
    assert request().completing.endswith("RUNNING")


# --- what could not work ------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    assert "that all pods share" in refusal(lighthouses=2)
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
