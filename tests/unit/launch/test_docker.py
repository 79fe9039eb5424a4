"""What `local_docker` asks Docker for, and is refused: TorchX's own requests, adjusted. No Docker is there."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from torchx.schedulers import docker_scheduler
from torchx.specs import AppDef

from torchft_x import env
from torchft_x.launch.job.build import ft_app, lighthouse_app
from torchft_x.launch.schedulers.docker import adjust
from torchft_x.launch.schedulers.role import FtRole, RoleFacts

OWN = "/tmp/torchft_x/run"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def containers(app: AppDef) -> list[Any]:
    scheduler = docker_scheduler.create_scheduler("here")
    return list(scheduler.submit_dryrun(app, scheduler.run_opts().resolve({})).request.containers)


def ask(**options: Any) -> tuple[set[str], set[str | None]]:
    """Run directories, as variables and commands name them, and tokens of all containers of such a job."""
    asked = containers(ft_app("train.py", image="img:1", **options))
    variables = [c.kwargs["environment"] for c in asked]
    commands = {c.command[c.command.index("--run_dir") + 1] for c in asked}
    return commands | {v[env.RUN_DIR] for v in variables}, {v.get(env.TOKEN) for v in variables}


MOUNTED = "type=bind,src=/,dst=/shared"


def test_a_mounted_run_directory_is_used_and_holds_the_token() -> None:
    assert ask(run_dir="/shared/runs/1", mounts=MOUNTED) == ({"/shared/runs/1"}, {None})


def test_one_that_can_only_be_read_is_not() -> None:
    run_dirs, tokens = ask(run_dir="/shared/1", mounts=f"{MOUNTED},readonly")
    assert run_dirs == {OWN}
    assert None not in tokens


def test_a_token_of_the_submitters_reaches_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TOKEN, "mine")
    assert ask()[1] == {"mine"}
    assert ask(token_file="/secret/token")[1] == {None}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ft_app("train.py"),
            "local_docker needs a container image with torchft_x in it: name one with --image.",
        ),
        (lambda: ft_app("train.py", image="i", lighthouses=2), "that all containers share"),
        (lambda: lighthouse_app(image="i", run_dir="/x"), "would make its token in its own container"),
    ],
)
def test_what_can_not_work_is_one_sentence(make: Any, said: str) -> None:
    with pytest.raises(SystemExit, match=said) as caught:
        containers(make())
    assert "\n" not in str(caught.value)


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
