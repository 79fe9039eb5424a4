"""The builder: what it takes from the surroundings, and what it sees to be wrong before anything starts."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchx import specs

from tests.util import write_secret
from torchft_x import ExtraRole, ft_app
from torchft_x.launch.job.build import diloco_app, lighthouse_app
from torchft_x.launch.job.job import FtJob


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's directory with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def refused(sentence: str):
    return pytest.raises(SystemExit, match=f"^torchft_x: {sentence}")


def test_every_field_of_a_job_can_be_given() -> None:
    given = set(inspect.signature(ft_app).parameters)
    assert given - {"h", "cpu", "gpu", "memMB"} == {f.name for f in dataclasses.fields(FtJob)} - {
        "lighthouse_from",
        "python",
    }


def test_defaults_are_those_of_the_job() -> None:
    raw = {"lighthouse": "", "run_dir": "", "env": None, "mounts": None, "resource": None}  # "find out", here
    raw |= {"h": None, "cpu": 2, "gpu": 0, "memMB": 4096}  # the job's resource
    fields = {f.name: f.default for f in dataclasses.fields(FtJob)}
    for name, parameter in inspect.signature(ft_app).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert parameter.default == raw.get(name, fields.get(name)), name


def test_each_run_has_its_own_directory(folder: Path) -> None:
    first, second = (ft_app("train.py").roles[0].env["TORCHFT_X_RUN_DIR"] for _ in range(2))
    assert first != second
    assert first.startswith(f"{folder}/runs/")


def test_who_names_the_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    def lighthouse(**options: object) -> str | None:
        roles = ft_app("train.py", **options).roles  # type: ignore[arg-type]
        assert len(roles) == (1 if "TORCHFT_LIGHTHOUSE" in roles[-1].env else 2)
        return roles[-1].env.get("TORCHFT_LIGHTHOUSE")

    assert lighthouse() is None
    assert lighthouse(lighthouse="auto") is None
    assert lighthouse(lighthouse=" a:1") == "a:1"
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "auto")
    assert lighthouse() is None
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://variable:1")
    assert lighthouse() == "http://variable:1"
    assert lighthouse(env={"TORCHFT_LIGHTHOUSE": "http://option:1"}) == "http://option:1"
    assert lighthouse(env={"TORCHFT_LIGHTHOUSE": "auto"}) is None
    assert lighthouse(lighthouse="http://argument:1") == "http://argument:1"


def test_auto_and_an_address_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "--lighthouse auto .* but TORCHFT_LIGHTHOUSE is http://a:1; leave --lighthouse out .*, or unset"
    with refused(sentence):
        ft_app("train.py", lighthouse="auto", env={"TORCHFT_LIGHTHOUSE": "http://a:1"})
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://a:1")
    with refused(sentence):
        ft_app("train.py", lighthouse="auto")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"env": {"TORCHFT_LIGHTHOUSE": "http://host"}}, "TORCHFT_LIGHTHOUSE 'http://host' has no valid port"),
        ({"lighthouse": "a:1,http://host"}, "--lighthouse 'http://host' has no valid port"),
        ({"script": "nowhere.py"}, "The script nowhere.py does not exist in"),
        ({"script": "."}, "The script . is a directory; name the Python file in it"),
        ({"script": "/dev/null"}, "The script /dev/null can be read only once"),
        ({"name": "n" * 201}, "--name has 201 characters; 200 are allowed"),
        ({"run_dir": "train.py"}, "--run_dir .*/train.py is a file; name a directory"),
        ({"run_dir": "train.py/x"}, "--run_dir .*/train.py/x can't be made: .*/train.py is a file"),
        ({"script": "typo.py"}, r"The script typo.py can't run: '\(' was never closed \(line 2: print\(\)."),
        (
            {"script": "scripts/train_ddp.py", "script_args": ["a.py", "--replicas", "3"]},
            "'a.py' .*; write --script a.py",
        ),
        (
            {"script": "scripts/train_ddp.py", "script_args": ["data"]},
            "'data' would be .*; name your script with --scr",
        ),
        ({"token_file": "none"}, "--token_file .*/none: the token can't be read"),
        ({"token_file": "train.py"}, "--token_file .*/train.py: the file's mode is 0"),
        ({"mounts": ["type=bind,src=/none,dst=/b"]}, "--mounts: /none does not exist on this machine"),
        ({"extra_roles": [ExtraRole("e", "none.py")]}, "The script of the extra role 'e' none.py does not exist"),
        ({"extra_roles": [ExtraRole("e", ["python", "none.py"])]}, "The script of the extra role 'e' none.py"),
        ({"extra_roles": [ExtraRole("e", "typo.py")]}, "The script typo.py can't run"),
    ],
)
def test_a_mistake_is_one_sentence(
    options: dict, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "typo.py").write_text("import os\nprint(\n")
    with refused(sentence) as caught:
        ft_app(**({"script": "train.py"} | options))
    assert "\n" not in str(caught.value)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"{caught.value}\n"


def test_gpus_without_a_worker_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ft_app("train.py", gpu=8)
    assert capsys.readouterr().err == (
        "torchft_x: each node of a group gets 8 GPUs and 1 of them a worker; unless your workers use several, give "
        "--workers_per_replica 8.\n"
    )
    app = ft_app("train.py", gpu=8, workers_per_replica=16, nodes_per_replica=2)
    assert capsys.readouterr().err == ""
    assert "--own_gpus" in app.roles[1].args


def test_what_exists_may_be_mounted(folder: Path) -> None:
    mounts = f"type=bind,src={folder},dst=/in,type=volume,src=v,dst=/out,type=device,src=/dev/none"
    for role in ft_app("train.py", mounts=mounts).roles:
        assert [type(m).__name__ for m in role.mounts] == ["BindMount", "VolumeMount", "DeviceMount"]


def test_a_resource_and_extra_roles_and_hooks(folder: Path) -> None:
    (folder / "evaluate.py").write_text("")
    app = ft_app(
        "train.py",
        ("--steps", "3"),
        resource=specs.Resource(cpu=7, gpu=0, memMB=8),
        extra_roles=[ExtraRole("evaluator", "evaluate.py")],
        hooks=[lambda scheduler, info: (scheduler, info)],
    )
    _, trainer, evaluator = app.roles
    assert trainer.resource.cpu == 7
    assert evaluator.args[-2:] == [sys.executable, "evaluate.py"]
    assert evaluator.pre_proc("unknown", "request") == ("unknown", "request")


def test_an_image_brings_its_own_python_and_files() -> None:
    extra = ExtraRole("e", "nowhere.py")
    options = {"token_file": "/in/the/image", "mounts": "type=bind,src=/on/the/node,dst=/x", "extra_roles": [extra]}
    app = ft_app("/in/the/image.py", image="img:1", **options)  # type: ignore[arg-type]
    assert {r.entrypoint for r in app.roles} == {"python"}
    assert {r.env["TORCHFT_X_TOKEN_FILE"] for r in app.roles} == {"/in/the/image"}
    extra = ft_app("train.py", extra_roles=[ExtraRole("e", "in_the_image.py", image="img:1")]).roles[-1]
    assert (extra.entrypoint, extra.args[-2:]) == ("python", ["python", "in_the_image.py"])


def test_paths_are_made_absolute_and_the_token_is_not_read(folder: Path) -> None:
    write_secret(folder / "token")
    app = ft_app("train.py", run_dir="out", token_file="token")
    assert {r.env["TORCHFT_X_RUN_DIR"] for r in app.roles} == {str(folder / "out")}
    assert {r.env["TORCHFT_X_TOKEN_FILE"] for r in app.roles} == {str(folder / "token")}
    assert "secret" not in repr(app)
    (role,) = lighthouse_app(run_dir="out", token_file="token").roles
    assert role.args[-4:] == ["--run_dir", str(folder / "out"), "--token_file", str(folder / "token")]


def test_a_lighthouse_alone_is_one_role() -> None:
    (role,) = lighthouse_app(port=0).roles
    assert role.args[3:5] == ["--bind", "[::]:0"]
    assert "--job_groups" not in role.args  # nothing ends it but who started it
    assert "--run_dir" not in role.args


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lighthouse_app(token_file="none"), "--token_file .*/none: the token can't be read"),
        (lambda: lighthouse_app(port=70000), "--port is 70000"),
    ],
)
def test_the_other_builders_refuse_in_a_sentence_too(make: Callable[[], object], sentence: str) -> None:
    with refused(sentence):
        make()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sync_steps": 0}, "--sync_steps is 0"),
        ({"num_fragments": 0}, r"--sync_steps is 10; .* --num_fragments \(0\)"),
        ({"sync_steps": 10, "num_fragments": 3}, r"--sync_steps is 10; .* --num_fragments \(3\)"),
        ({"fragment_sync_delay": -1}, "--fragment_sync_delay is -1"),
        ({"sync_steps": 10, "num_fragments": 2, "fragment_sync_delay": 5}, r"--fragment_sync_delay is 5; .*\(5\)"),
        ({"quantize": "int3"}, r"--quantize 'int3' is not one of none, int8, int4, fp8\."),
        ({"islands": "1,2", "num_fragments": 2}, "--num_fragments is 2, and islands exchange"),
    ],
)
def test_mistakes_in_dilocos_settings(options: dict[str, Any], named: str) -> None:
    with refused(named):
        diloco_app("train.py", **options)
