"""torchft's names, here and under its own name; and unchanged scripts in real processes."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.extended.rpc.test_peer import HOW
from tests.interpreters import PEER_PYTHON
from tests.process.programs import ROOT, python
from tests.util import scaled
from torchft_x import env
from torchft_x.compat import modules
from torchft_x.compat.__main__ import PATH, command
from torchft_x.compat.names import LACKING, TREE


@pytest.mark.parametrize("module", sorted(TREE))
def test_every_name_is_there(module: str) -> None:
    made = importlib.import_module(f"torchft_x.compat.{module}" if module else "torchft_x.compat")
    for name in TREE[module]:
        value = getattr(made, name)
        assert name in dir(made)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name} says nothing of itself"


def test_a_name_that_we_lack_says_why() -> None:
    assert not {name for name in LACKING if name in TREE}
    made = importlib.import_module("torchft_x.compat.device_mesh")
    with pytest.raises(AttributeError, match=r"no torchft.device_mesh.ManagedDeviceMesh: ft_init_device_mesh makes"):
        getattr(made, "ManagedDeviceMesh")  # noqa: B009
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        getattr(made, "Nonsense")  # noqa: B009


@pytest.mark.peer
def test_every_public_name_of_the_peer_is_here_or_said_to_be_lacking() -> None:
    python = env.read(PEER_PYTHON)
    if python is None:
        pytest.skip(HOW)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, timeout=scaled(30)).stdout
    package = Path(site.strip()) / "torchft"
    missing = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        if (
            path.stem.endswith(("_test", "_bench"))
            or parts[0] in ("_test", "_test_utils", "examples")
            or name in LACKING
        ):
            continue
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                continue
            if node.name not in TREE.get(name, {}) and f"{name}.{node.name}" not in LACKING:
                missing.append(f"{name}.{node.name}")
    assert missing == []


SCRIPT = """
    import sys
    import torchft.coordination, torchft.manager
    from torchft._torchft import QuorumResult
    import torchft_x.compat.coordination as ours
    assert torchft.coordination is ours and sys.modules["torchft.coordination"] is ours
    assert torchft.coordination.__name__ == ours.__spec__.name == "torchft_x.compat.coordination"
    assert "torch" not in sys.modules, "nobody has asked for a Manager yet"
    print(__name__, sys.argv[1:], QuorumResult().max_world_size)
    if sys.argv[1:] != ["child"]:
        import multiprocessing, subprocess
        subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_a_script_and_its_children_get_ours(tmp_path: Path) -> None:
    script = tmp_path / "own" / "script.py"
    (tmp_path / "own" / "torchft").mkdir(parents=True)  # a clone of torchft, from which its examples are run
    (tmp_path / "own" / "torchft" / "__init__.py").write_text("raise AssertionError('the real one')")
    script.write_text(textwrap.dedent(SCRIPT))
    told = python("-m", "torchft_x.compat", script, "--flag", "-m", cwd=tmp_path).stdout
    assert told.splitlines() == ["__main__ ['--flag', '-m'] 1", "__main__ ['child'] 1"]
    told = python("-m", "torchft_x.compat", "-m", "script", "child", cwd=tmp_path / "own").stdout
    assert told == "__main__ ['child'] 1\n"


def test_a_launcher_says_it_by_one_variable_and_the_environments_own_sitecustomize_stays(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own_was_here = True")
    path = python("-m", "torchft_x.compat", "--path", cwd=tmp_path).stdout.strip()
    assert path == str(PATH)
    code = "import sys, torchft.coordination as c; print(c.LighthouseServer.__module__, sys.own_was_here)"
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=f"{path}:{tmp_path}:{ROOT}")
    assert done.stdout == "torchft_x.rpc.coordination True\n"
    # In a clone nothing is installed, and only the folder from which Python was started has it.
    code = f"import sys; sys.path.insert(0, {path!r}); import sitecustomize, torchft"
    assert python("-I", "-S", "-c", code, cwd=tmp_path).stdout == ""


def test_without_being_told_so_torchft_is_torchft() -> None:
    code = "import sys, torchft_x.compat.coordination; print('torchft' in sys.modules, len(sys.meta_path))"
    assert python("-c", code).stdout.startswith("False")
    assert not any(getattr(finder, "root", "") == modules.PEER for finder in sys.meta_path)


def test_pythons_own_flags_stay() -> None:
    started = ["python", "-X", "utf8", "-m", "torchft_x.compat", "a.py", "-v"]
    assert command(started, ["a.py", "-v"]) == [sys.executable, "-X", "utf8", "a.py", "-v"]
    assert command(["python", "-mtorchft_x.compat", "a.py"], ["a.py"]) == [sys.executable, "a.py"]
