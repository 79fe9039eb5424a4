"""What `local_docker` asks Docker for: TorchX's own requests on both its lines, adjusted. No Docker is there."""

from __future__ import annotations

import types
from typing import Any

import pytest
import yaml

from tests.unit.launch.lines import BOTH, torchx
from torchft_x import env
from torchft_x.launch.schedulers.docker import adjust
from torchft_x.launch.schedulers.role import FtRole, RoleFacts

OWN = "/tmp/torchft_x"


class Loader(yaml.SafeLoader):
    """Reads TorchX's print of a request, which names its classes."""


Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/object", lambda loader, _, node: loader.construct_mapping(node, deep=True)
)


def ask(*options: str, line: str = "this", component: str = "ddp", **variables: str) -> dict[str, dict[str, Any]]:
    """By name of role and number: command, environment, image and mounts."""
    words = ["run", "-s", "local_docker", "--workspace", "", "--dryrun", f"./components.py:{component}", *options]
    done = torchx(*words, line=line, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for c in yaml.load(done.stdout.split("=== SCHEDULER REQUEST ===")[1], Loader):
        labels = c["kwargs"]["labels"]
        name = f"{labels['torchx.pytorch.org/role-name']}-{labels['torchx.pytorch.org/replica-id']}"
        found[name] = {"words": c["command"], "image": c["image"], "env": c["kwargs"]["environment"]}
    return found


def run_dirs(asked: dict[str, dict[str, Any]]) -> set[str]:
    """As the variable and the command say."""
    return {c["words"][c["words"].index("--run_dir") + 1] for c in asked.values()} | {
        c["env"][env.RUN_DIR] for c in asked.values()
    }


@pytest.mark.parametrize("line", BOTH)
def test_containers_that_share_nothing_find_each_other(line: str) -> None:
    asked = ask("--image", "img:1", "--", "--run_dir", "the script's own", line=line)
    assert sorted(asked) == ["lighthouse-0", "trainer-0", "trainer-1"]
    assert run_dirs(asked) == {OWN}  # the submitter's path can't be made in there
    assert asked["trainer-1"]["words"][-2:] == ["--run_dir", "the script's own"]
    (token,) = {c["env"][env.TOKEN] for c in asked.values()}
    assert len(token) > 30
    trainer = asked["trainer-0"]["env"]
    assert trainer[trainer[env.LIGHTHOUSE_HOST_IN]].endswith("-lighthouse-0")
    assert ask("--image", "img:1", line=line)["trainer-0"]["env"][env.TOKEN] != token


def test_a_mounted_run_directory_is_used_and_holds_the_token() -> None:
    mounts = ("--mounts", "type=bind,src=/data,dst=/shared")
    asked = ask("--image", "img:1", "--run_dir", "/shared/runs/1", *mounts)
    assert run_dirs(asked) == {"/shared/runs/1"}
    assert not any(env.TOKEN in c["env"] for c in asked.values())


def test_one_that_can_only_be_read_is_not() -> None:
    asked = ask("--image", "i", "--run_dir", "/shared/1", "--mounts", "type=bind,src=/data,dst=/shared,readonly")
    assert run_dirs(asked) == {OWN}
    assert all(env.TOKEN in c["env"] for c in asked.values())


def test_a_token_of_the_submitters_reaches_all() -> None:
    asked = ask("--image", "img:1", TORCHFT_X_TOKEN="mine")
    assert {c["env"][env.TOKEN] for c in asked.values()} == {"mine"}
    named = ask("--image", "img:1", "--token_file", "/secret/token", TORCHFT_X_TOKEN="mine")
    assert not any(env.TOKEN in c["env"] for c in named.values())


@pytest.mark.parametrize(
    ("component", "options", "said"),
    [
        ("ddp", (), "local_docker needs a container image with torchft_x in it: name one with --image."),
        ("ddp", ("--image", "i", "--lighthouses", "2"), "that all containers share"),
        ("lighthouse", ("--image", "i", "--run_dir", "/x"), "would make its token in its own container"),
    ],
)
def test_what_can_not_work_is_one_sentence(component: str, options: tuple[str, ...], said: str) -> None:
    words = ("run", "-s", "local_docker", "--workspace", "", "--dryrun", f"./components.py:{component}", *options)
    done = torchx(*words)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_image_with_the_workspace_reaches_the_other_roles() -> None:
    roles = [
        FtRole(name=n, image="img:1", entrypoint="python", ft=RoleFacts(kind=k, groups=1))  # type: ignore[arg-type]
        for n, k in (("lighthouse", "lighthouse"), ("trainer", "trainer"), ("evaluator", "sidecar"))
    ]
    images = ("built:2", "img:1", "other:3")
    info = types.SimpleNamespace(
        request=types.SimpleNamespace(containers=[container(r.name, i) for r, i in zip(roles, images, strict=True)])
    )
    for role in roles:
        adjust(role, info)
    assert [c.image for c in info.request.containers] == ["built:2", "built:2", "other:3"]


def container(role: str, image: str) -> Any:
    options = {"environment": {env.RUN_DIR: "/x"}, "labels": {"torchx.pytorch.org/role-name": role}, "mounts": []}
    return types.SimpleNamespace(image=image, command=["python", "-m", "torchft_x"], kwargs=options)


@pytest.mark.parametrize("containers", [None, [types.SimpleNamespace(command=[])], [object()], []])
def test_a_request_of_an_unknown_shape_stays_as_it_is(containers: Any) -> None:
    info = types.SimpleNamespace(request=types.SimpleNamespace(containers=containers))
    role = FtRole(name="trainer", image="i", entrypoint="python", ft=RoleFacts(kind="trainer", groups=1))
    assert adjust(role, info) is info
