"""The rooms of docs/design.md: who may import whom, and who may load torch at start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import scaled

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchft_x"

LEAVES = {"errors", "env", "net", "durations", "_version"}  # may be imported by every room
ALLOWED = {
    "core": {"errors"},
    "rpc": {"core", "observe", *LEAVES},
    "comm": {"core", *LEAVES},
    "transfer": {"core", *LEAVES},
    "observe": {"core", *LEAVES},
    "train": {"core", "rpc", "comm", "transfer", "observe", *LEAVES},
    "launch": {"core", "rpc", "observe", *LEAVES},
}
STDLIB_ONLY = {"core"}
GRPC_ONLY_IN = {"rpc"}
NO_TORCH_AT_START = [
    "torchft_x",
    "torchft_x.core.lighthouse.machine",
    "torchft_x.core.group.machine",
    "torchft_x.rpc.lighthouse.main",
    "torchft_x.rpc.group.client",
    "torchft_x.rpc.supervisor.client",
    "torchft_x.launch.job.app",
    "torchft_x.launch.supervisor.group",
    "torchft_x.launch.supervisor.sidecar",
    "torchft_x.launch.doctor.checks",
    "torchft_x.observe.events",
    "torchft_x.__main__",
]


def modules(room: str) -> list[Path]:
    return [p for p in sorted((PACKAGE / room).rglob("*.py")) if not p.name.endswith("_pb2.py")]


def imported(path: Path) -> set[str]:
    """Dotted names a module imports, anywhere in its text (also inside functions)."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            names.add(node.module or "")
            names.update(f"{node.module}.{a.name}" for a in node.names if node.module == "torchft_x")
    return names


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_the_design_allows(room: str) -> None:
    for path in modules(room):
        for name in imported(path):
            if name.startswith("torchft_x."):
                target = name.split(".")[1]
                assert target in ALLOWED[room] | {room}, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("room", sorted(STDLIB_ONLY))
def test_the_core_is_standard_library_only(room: str) -> None:
    forbidden = {"socket", "threading", "time", "asyncio", "logging", "random", "os", "subprocess"}
    for path in modules(room):
        for name in imported(path):
            top = name.split(".")[0]
            assert top == "torchft_x" or top in sys.stdlib_module_names, f"{path.name} imports {name}"
            assert top not in forbidden, f"{path.name} imports {name}: the core has no clock, socket, thread or log"


def test_only_rpc_knows_grpc_and_nobody_unpickles() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        names = {n.split(".")[0] for n in imported(path)}
        if path.relative_to(PACKAGE).parts[0] not in GRPC_ONLY_IN:
            assert "grpc" not in names, f"{path.relative_to(ROOT)} imports grpc"
        assert "pickle" not in names, f"{path.relative_to(ROOT)} imports pickle"


def test_only_env_reads_the_environment() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "env.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            touched = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
            assert not touched or ast.unparse(node).split(".")[0] != "os", f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("module", NO_TORCH_AT_START)
def test_start_up_without_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr or f"{module} loads torch or numpy"


def test_every_room_is_in_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for init in PACKAGE.rglob("__init__.py"):
        name = ".".join(init.parent.relative_to(ROOT).parts)
        assert f'"{name}"' in text, f"{name} is missing from [tool.setuptools] packages"


def test_every_public_name_loads() -> None:
    import torchft_x

    for name in torchft_x.__all__:
        assert getattr(torchft_x, name) is not None
