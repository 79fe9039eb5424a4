"""The components: the same in every place, portable, and each mistake one sentence. Runs on every TorchX line."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchx import specs

from torchft_x.launch.role import FtRole

ROOT = Path(__file__).parent.parent.parent
NAMES = ("ddp", "hsdp")
PLACES = {
    "components.py": NAMES,
    "components/__init__.py": NAMES,
    "components/ddp.py": ("ddp",),
    "components/hsdp.py": ("hsdp",),
}


def defs(place: str) -> dict[str, str]:
    """The functions of a component file, as text."""
    text = (ROOT / place).read_text(encoding="utf-8")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    return {n.name: ast.get_source_segment(text, n) or "" for n in found}


def component(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path):
    """A component as it stands in components.py, called in an empty directory that has a train.py."""
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    space: dict = {}
    exec(compile((ROOT / "components.py").read_text(), "components.py", "exec"), space)
    return space[name]


@pytest.mark.parametrize("place", PLACES)
def test_the_same_everywhere(place: str) -> None:
    here, there = defs(place), defs("components.py")
    assert set(here) == set(PLACES[place])
    for name, text in here.items():
        assert text == there[name]


@pytest.mark.parametrize("place", PLACES)
def test_every_parameter_is_explained_and_passed_on(place: str) -> None:
    for name, text in defs(place).items():
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.FunctionDef)
        parameters = [a.arg for a in node.args.args]
        docstring = ast.get_docstring(node) or ""
        explained = [line.split(":")[0].strip() for line in docstring.split("Args:\n")[1].splitlines()]
        assert explained == ["script_args", *(a.arg for a in node.args.kwonlyargs)], name
        assert parameters == []  # all after *script_args
        returned = node.body[-1]
        assert isinstance(returned, ast.Return)
        assert isinstance(returned.value, ast.Call)
        assert [k.arg for k in returned.value.keywords] == [a.arg for a in node.args.kwonlyargs]


def test_the_builder_makes_the_app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ddp = component("ddp", monkeypatch, tmp_path)
    app = ddp("--steps", "3", script="train.py", replicas=3, run_dir="out", env={"A": "1"})
    assert [r.name for r in app.roles] == ["lighthouse", "trainer"]
    assert all(isinstance(r, FtRole) for r in app.roles)
    trainer = app.roles[1]
    assert trainer.num_replicas == 3
    assert trainer.args[-4:] == ["--", "train.py", "--steps", "3"]
    assert trainer.env["TORCHFT_X_RUN_DIR"] == str(tmp_path / "out")
    assert trainer.entrypoint == sys.executable
    assert not (tmp_path / "out").exists()  # a dry-run makes nothing


def test_each_run_has_its_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hsdp = component("hsdp", monkeypatch, tmp_path)
    first, second = (hsdp(script="train.py").roles[0].env["TORCHFT_X_RUN_DIR"] for _ in range(2))
    assert first != second
    assert first.startswith(f"{tmp_path}/runs/")


def test_an_image_brings_its_own_python_and_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = component("ddp", monkeypatch, tmp_path)(script="/in/the/image.py", image="img:1")
    assert {r.entrypoint for r in app.roles} == {"python"}


def test_who_names_the_lighthouse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ddp = component("ddp", monkeypatch, tmp_path)
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://variable:1")

    def lighthouse(**options: object) -> str:
        (trainer,) = ddp(script="train.py", **options).roles
        return trainer.env["TORCHFT_LIGHTHOUSE"]

    assert lighthouse() == "http://variable:1"
    assert lighthouse(env={"TORCHFT_LIGHTHOUSE": "http://option:1"}) == "http://option:1"
    assert lighthouse(lighthouse="http://argument:1") == "http://argument:1"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"script": "nowhere.py"}, "nowhere.py does not exist in"),
        ({"script": "typo.py"}, "typo.py can't run: '(' was never closed (line 2: print()."),
        ({"replicas": 0}, "--replicas is 0"),
        ({"min_replicas": 5}, "--min_replicas is 5"),
        ({"lighthouse": "http://host"}, "--lighthouse 'http://host' has no valid port"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ddp = component("ddp", monkeypatch, tmp_path)
    (tmp_path / "typo.py").write_text("import os\nprint(\n")
    with pytest.raises(SystemExit, match="torchft_x: ") as caught:
        ddp(**({"script": "train.py"} | options))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


class TestRole:
    """What is checked once the scheduler is known."""

    @dataclasses.dataclass
    class Replica:
        env: dict[str, str]

    def request(self, role: FtRole) -> object:
        params = {role.name: [self.Replica({}), self.Replica({})]}
        return type("DryRun", (), {"request": type("Request", (), {"role_params": params})})

    def test_a_local_job_knows_its_launcher(self) -> None:
        role = FtRole(name="trainer", image="")
        dryrun = self.request(role)
        assert role.pre_proc("local", dryrun) is dryrun
        assert [r.env for r in dryrun.request.role_params["trainer"]] == [
            {"TORCHFT_X_LAUNCHER_PID": str(os.getpid())}
        ] * 2

    @pytest.mark.parametrize("scheduler", ["slurm", "kubernetes", "local_docker", "something_new"])
    def test_other_schedulers_requests_are_left_alone(self, scheduler: str) -> None:
        role = FtRole(name="trainer", image="", resource=specs.Resource(cpu=1, gpu=64, memMB=1))
        unknown = object()
        assert role.pre_proc(scheduler, unknown) is unknown

    def test_a_request_of_another_shape_is_left_alone(self) -> None:
        unknown = object()
        assert FtRole(name="trainer", image="").pre_proc("local", unknown) is unknown

    def test_gpus_need_a_machine_that_has_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        role = FtRole(name="trainer", image="", resource=specs.Resource(cpu=1, gpu=1, memMB=1))
        monkeypatch.setattr("torchft_x.launch.checks.accelerators", list)
        with pytest.raises(SystemExit, match="--gpu 1: this machine has no GPU"):
            role.pre_proc("local", object())
        monkeypatch.setattr("torchft_x.launch.checks.accelerators", lambda: ["/dev/nvidia0"])
        role.pre_proc("local", object())

    def test_the_lighthouses_name_is_looked_up(self) -> None:
        role = FtRole(name="trainer", image="", env={"TORCHFT_LIGHTHOUSE": "http://no.such.host.invalid:1"})
        with pytest.raises(SystemExit, match=r"TORCHFT_LIGHTHOUSE\) http://no\.such\.host\.invalid:1"):
            role.pre_proc("local", object())


def torchx(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The real command, without the clone on the path: as a user's shell has it."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCHFT_LIGHTHOUSE")}
    command = [str(Path(sys.executable).with_name("torchx")), *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("place", PLACES)
def test_dry_run_of_each_place(place: str) -> None:
    for name in PLACES[place]:
        script = str(Path(__file__))
        done = torchx(
            "run", "-s", "local_cwd", "--dryrun", f"./{place}:{name}", "--script", script, "--", "--steps", "3"
        )
        assert done.returncode == 0, done.stderr
        assert "'supervise'" in done.stdout
        assert "'--steps'" in done.stdout


def test_the_default_component() -> None:
    done = torchx("run", "--dryrun", "--", "--script", str(Path(__file__)))
    assert done.returncode == 0, done.stderr
    assert "'name': 'hsdp'" in done.stdout


def test_a_mistake_on_the_command_line() -> None:
    done = torchx("run", "./components.py:ddp", "--replicas", "0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "torchft_x: --replicas is 0; a job needs at least one replica group."
    assert "Traceback" not in done.stderr
