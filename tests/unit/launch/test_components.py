"""The components: the same in every file and as their one list says, portable, and each mistake one sentence."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.launch.lines import FILES, NAMES, ROOT, TRAINING
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.train.fault_tolerance import from_environment


def maker() -> ModuleType:
    """scripts/make_components.py."""
    spec = importlib.util.spec_from_file_location("make_components", ROOT / "scripts" / "make_components.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_components"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def defs(file: str) -> dict[str, str]:
    """The functions of a component file, as text."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    return {n.name: ast.get_source_segment(text, n) or "" for n in found}


def component(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path):
    """A component as it stands in components.py, called in an empty directory that has a train.py."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    space: dict = {}
    exec(compile((ROOT / "components.py").read_text(), "components.py", "exec"), space)
    return space[name]


def test_the_files_are_made_from_the_list() -> None:
    different = [str(p) for p, text in maker().files() if p.read_text(encoding="utf-8") != text]
    assert different == [], "run python scripts/make_components.py and read the diff"


def test_every_file_is_made() -> None:
    there = {f"components/{p.name}" for p in (ROOT / "components").glob("*.py")} | {"components.py"}
    assert there - {"components/__init__.py"} == set(FILES) == set(maker().FILES)


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_all_that_its_functions_use(file: str) -> None:
    space: dict = {}
    exec(compile((ROOT / file).read_text(), file, "exec"), space)
    for name in FILES[file]:
        assert set(space[name].__code__.co_names) <= set(space)
        assert ast.dump(ast.parse(defs(file)[name])) == ast.dump(ast.parse(defs("components.py")[name]))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_explained_and_passed_on(name: str) -> None:
    node = ast.parse(defs("components.py")[name]).body[0]
    assert isinstance(node, ast.FunctionDef)
    own = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
    varargs = [node.args.vararg.arg] if node.args.vararg else []
    docstring = ast.get_docstring(node) or ""
    explained = [line.split(":")[0].strip() for line in docstring.split("Args:\n")[1].splitlines()]
    assert explained == [*varargs, *own]
    returned = node.body[-1]
    assert isinstance(returned, ast.Return)
    assert isinstance(returned.value, ast.Call)
    words = [a.id for a in returned.value.args if isinstance(a, ast.Name)]
    assert sorted([*words, *(k.arg or "" for k in returned.value.keywords)]) == sorted([*varargs, *own])
    assert all(isinstance(k.value, ast.Name) and k.value.id == k.arg for k in returned.value.keywords)


@pytest.mark.parametrize("name", TRAINING)
def test_a_components_app(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = component(name, monkeypatch, tmp_path)("--steps", "3", script="train.py", replicas=3, run_dir="out")
    assert app.name == name
    assert [r.name for r in app.roles] == ["lighthouse", "trainer"]
    assert all(isinstance(r, FtRole) for r in app.roles)
    trainer = app.roles[1]
    assert trainer.num_replicas == 3
    assert trainer.args[-4:] == ["--", "train.py", "--steps", "3"]
    assert trainer.env["TORCHFT_X_RUN_DIR"] == str(tmp_path / "out")
    assert trainer.entrypoint == sys.executable
    assert not (tmp_path / "out").exists()  # a dry-run makes nothing


def test_titan_runs_torchtitan_under_torchfts_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    titan = component("titan", monkeypatch, tmp_path)
    trainer = titan("--training.steps", "3", module="mine", config="small", replicas=3).roles[1]
    assert trainer.args[:5] == ["-m", "torchft_x.compat", "-m", "torchft_x", "supervise"]
    words = ["--module", "mine", "--config", "small", "--training.steps", "3"]
    assert trainer.args[trainer.args.index("--") + 1 :] == ["-m", "torchft_x.compat.titan", *words]
    assert trainer.env["JE_ARROW_MALLOC_CONF"] == "background_thread:false"


def test_dilocos_settings_reach_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    diloco = component("diloco", monkeypatch, tmp_path)
    _, trainer = diloco(script="train.py", sync_steps=20, num_fragments=2, fragment_sync_delay=3, quantize="int4").roles
    settings = {"sync_steps": 20, "num_fragments": 2, "fragment_sync_delay": 3, "should_quantize": "int4"}
    assert from_environment(trainer.env) == settings
    _, trainer = diloco(script="train.py", env={"TORCHFT_X_FAULT_TOLERANCE": "{}"}).roles
    assert from_environment(trainer.env) == {}
    with pytest.raises(SystemExit, match=r"torchft_x: --sync_steps is 10; .* --num_fragments \(3\)"):
        diloco(script="train.py", num_fragments=3)
    _, trainer = diloco(script="train.py", replicas=3, islands="1,2,3").roles
    assert (trainer.num_replicas, from_environment(trainer.env)["rank0_synchronization_only"]) == (3, True)
    assert trainer.args[trainer.args.index("--workers") + 1] == "1,2,3"


def test_the_default_script_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in TRAINING:
        hsdp = component(name, monkeypatch, tmp_path)
        script = f"scripts/train_{name}.py"
        with pytest.raises(SystemExit, match=rf"default script {script}, .* clone .*; name yours with --sc"):
            hsdp()
        monkeypatch.chdir(ROOT)
        assert script in hsdp().roles[1].args
