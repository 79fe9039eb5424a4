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
WALLS = {  # bottom up: a package imports only from those above it in this table, and of them only from these
    "core": "",
    "core.messages": "core",
    "core.commit": "core core.messages",
    "core.group": "core core.commit core.messages",
    "core.job": "core.messages",
    "core.quorum": "core",
    "core.membership": "core core.messages core.quorum",
    "core.admission": "core core.membership core.messages core.quorum",
    "core.restart": "core core.membership core.messages core.quorum",
    "core.training": "",
    "core.lighthouse": "core core.admission core.membership core.messages core.quorum core.restart core.training",
    "observe": "core",
    "rpc.proto": "",
    "rpc.transport": "",
    "rpc.transport.streams": "core.group rpc.proto rpc.transport",
    "rpc.codec": "core core.messages rpc.proto rpc.transport",
    "rpc.group": "core core.group core.messages rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse.failover": "core core.job core.restart rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse.services": "core.job core.messages rpc.codec rpc.lighthouse.failover rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse": "core core.job core.lighthouse core.messages observe rpc.codec rpc.lighthouse.failover rpc.lighthouse.services rpc.proto rpc.transport rpc.transport.streams",
    "rpc": "core core.lighthouse rpc.codec rpc.group rpc.lighthouse rpc.proto rpc.transport",
    "rpc.supervisor": "rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "comm.store": "",
    "comm": "comm.store",
    "comm.accelerator": "comm comm.store",
    "comm.gloo": "comm comm.store",
    "comm.quantized": "comm",
    "comm.subprocess": "comm comm.accelerator",
    "comm.votes": "comm.store",
    "comm.wrappers": "comm comm.accelerator",
    "transfer.format": "",
    "transfer": "core transfer.format",
    "transfer.http": "core transfer transfer.format",
    "train.setup": "comm.store comm.votes core rpc.group",
    "train.introspection": "core.commit observe train.setup",
    "train.context": "comm.quantized comm.votes core core.commit core.training observe train.introspection train.setup transfer transfer.format transfer.http",
    "train.heal": "comm core core.training train.context",
    "train.step": "comm.quantized comm.votes core core.commit core.messages rpc.codec rpc.group train.context train.heal",
    "train": "comm comm.quantized comm.store core core.commit core.training train.context train.heal train.setup train.step transfer transfer.format transfer.http",
    "train.ddp": "core train train.step transfer.format",
    "train.local": "comm.quantized core.training observe train train.ddp",
    "launch.devices": "",
    "launch.process": "",
    "launch.schedulers": "launch.devices",
    "launch.job": "core launch.schedulers",
    "launch.workers": "launch.process",
    "launch.postmortem": "launch.process launch.workers observe",
    "launch.supervisor": "launch.job launch.postmortem launch.process launch.workers observe rpc.supervisor rpc.transport",
    "launch.doctor": "launch.devices launch.supervisor observe rpc rpc.transport",
    "launch": "launch.doctor launch.job launch.postmortem launch.process launch.supervisor observe",
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


def package_of(name: str) -> str:
    """The package that an imported dotted name (without ``torchft_x.``) belongs to; "" for the leaves."""
    parts = name.split(".")
    while parts and not (PACKAGE.joinpath(*parts) / "__init__.py").exists():
        parts.pop()
    return ".".join(parts)


@pytest.mark.parametrize("package", sorted(WALLS))
def test_a_package_imports_only_what_the_table_allows(package: str) -> None:
    allowed = set(WALLS[package].split())
    leaves = {"errors"} if package.split(".")[0] == "core" else LEAVES
    for path in sorted((PACKAGE / package.replace(".", "/")).glob("*.py")):
        if path.name.endswith("_pb2.py") or path.name == "__init__.py":  # a face may show what lies below it
            continue
        for name in imported(path):
            if name.startswith("torchft_x."):
                name = name.removeprefix("torchft_x.")
                target = package_of(name)
                inside = target in allowed | {package} or (not target and name.split(".")[0] in leaves)
                assert inside, f"{path.relative_to(ROOT)} imports {name}"


def test_the_table_has_every_package_and_no_circle() -> None:
    packages = {".".join(p.parent.relative_to(PACKAGE).parts) for p in PACKAGE.rglob("__init__.py")} - {""}
    assert set(WALLS) == packages
    above: set[str] = set()
    for package, allowed in WALLS.items():
        assert set(allowed.split()) <= above, f"{package} may import only from packages above it in the table"
        above.add(package)


@pytest.mark.parametrize("package", sorted(WALLS))
def test_a_package_has_at_most_ten_files(package: str) -> None:
    files = {p.name for p in (PACKAGE / package.replace(".", "/")).glob("*.py")} - {"__init__.py"}
    assert len(files) <= 10, f"{package}: files that decide one thing together belong in a package of their own"


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
