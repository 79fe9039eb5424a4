"""The rooms of docs/design.md: who may import whom, and who may load torch at start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.structure import source
from tests.util import scaled

ROOT = Path(__file__).parent.parent

LEAVES = {
    "errors",
    "env",
    "net",
    "durations",
    "arguments",
    "last_words",
    "log_lines",
    "descriptors",
    "_version",
}  # may be imported by every room
WALLS = {  # bottom up: a package imports only from those above it in this table, and of them only from these
    "core": "",
    "core.messages": "core",
    "core.commit": "core core.messages",
    "core.group": "core core.commit core.messages",
    "core.job": "core core.messages",
    "core.quorum": "core",
    "core.membership": "core core.messages core.quorum",
    "core.admission": "core core.membership core.messages core.quorum",
    "core.restart": "core core.membership core.messages core.quorum",
    "core.training": "core",
    "core.slurm": "",
    "core.kubernetes": "core.job core.messages",
    "core.lighthouse": "core core.admission core.membership core.messages core.quorum core.restart core.training",
    "core.view": "core core.lighthouse core.messages",
    "observe": "core core.view",
    "observe.run": "core observe",
    "observe.drawing": "observe observe.run",
    "observe.export": "observe",
    "rpc.proto": "",
    "rpc.transport": "",
    "rpc.transport.streams": "core.group rpc.proto rpc.transport",
    "rpc.codec": "core core.job core.messages core.view rpc.proto rpc.transport",
    "rpc.group": "core core.group core.messages core.view rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse.failover": "core core.job core.restart rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse.services": "core.job core.messages core.view rpc.codec rpc.lighthouse.failover rpc.proto rpc.transport rpc.transport.streams",
    "rpc.lighthouse.page": "core.job core.lighthouse core.messages core.view rpc.proto rpc.transport",
    "rpc.lighthouse": "core core.job core.lighthouse core.messages observe rpc.codec rpc.lighthouse.failover rpc.lighthouse.page rpc.lighthouse.services rpc.proto rpc.transport rpc.transport.streams",
    "rpc": "core core.lighthouse rpc.codec rpc.group rpc.lighthouse rpc.proto rpc.transport",
    "rpc.supervisor": "core rpc.codec rpc.proto rpc.transport rpc.transport.streams",
    "comm.store": "",
    "comm": "comm.store",
    "comm.accelerator": "comm comm.store",
    "comm.gloo": "comm comm.store",
    "comm.quantized": "comm",
    "comm.subprocess": "comm comm.accelerator",
    "comm.votes": "comm.store",
    "comm.wrappers": "comm comm.accelerator comm.store",
    "transfer.format": "",
    "transfer": "core transfer.format",
    "transfer.http": "core transfer transfer.format",
    "transfer.durable": "transfer transfer.format",
    "transfer.from_memory": "core core.training transfer transfer.durable transfer.format",
    "transfer.convert": "transfer.durable transfer.format transfer.from_memory",
    "transfer.storage": "core transfer transfer.durable transfer.format",
    "train.setup": "comm.store comm.votes core core.training rpc.group",
    "train.introspection": "core.commit observe train.setup",
    "train.context": "comm.quantized comm.votes core core.commit core.training observe train.introspection train.setup transfer transfer.format transfer.http",
    "train.heal": "comm core core.commit core.training train.context transfer.format",
    "train.step": "comm.quantized comm.votes core core.commit core.messages core.training rpc.codec rpc.group train.context train.heal",
    "train": "comm comm.quantized comm.store core core.commit core.training train.context train.heal train.setup train.step transfer transfer.format transfer.http",
    "train.ddp": "core train train.step transfer.format",
    "train.checkpoint": "core core.training train train.ddp transfer.durable transfer.format transfer.from_memory",
    "train.local": "comm.quantized core.training observe train train.ddp",
    "compat.adapters": "core train train.ddp train.local transfer transfer.format transfer.http",
    "compat": "compat.adapters rpc.lighthouse",
    "compat.path": "compat",
    "launch.devices": "",
    "launch.process": "core core.training",
    "launch.schedulers": "launch.devices",
    "launch.job": "core launch.schedulers",
    "launch.workers": "launch.process",
    "launch.postmortem": "launch.process launch.workers observe",
    "launch.chaos": "launch.postmortem observe",
    "launch.supervisor": "core launch.job launch.postmortem launch.process launch.workers observe rpc.supervisor rpc.transport",
    "launch.keeper": "core.job core.messages launch.devices launch.process launch.supervisor launch.workers observe",
    "launch.slurm": "core.job core.messages core.slurm launch.keeper launch.schedulers observe",
    "launch.slurm.watch": "core.slurm launch.slurm rpc",
    "launch.kubernetes": "core.kubernetes launch.chaos launch.schedulers observe observe.run",
    "launch.plugin": "core.kubernetes core.slurm launch.devices launch.keeper launch.kubernetes launch.process launch.schedulers launch.slurm",
    "launch.plugin.namespace": "launch.plugin",
    "launch.doctor": "launch.devices launch.supervisor observe rpc rpc.transport",
    "launch.status": "launch.kubernetes rpc",
    "launch": "launch.chaos launch.doctor launch.job launch.keeper launch.kubernetes launch.postmortem launch.process launch.slurm launch.supervisor observe observe.drawing observe.run",
}
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
    "torchft_x.launch.status.commands",
    "torchft_x.launch.status.live",
    "torchft_x.launch.keeper.commands",
    "torchft_x.launch.plugin.scheduler",
    "torchft_x.launch.plugin.slurm",
    "torchft_x.launch.plugin.kubernetes",
    "torchft_x.compat.modules",
    "torchft_x.compat.coordination",
    "torchft_x.observe.events",
    "torchft_x.__main__",
]


MODULES = source.read(ROOT)


def trespasses(modules: list[source.Module], walls: Mapping[str, str]) -> list[str]:
    """Imports that the walls forbid. A face may show what lies below it."""
    package = {m.name: m.package for m in modules}
    found = []
    for name, targets in source.arrows(modules).items():
        allowed = {package[name], *walls.get(package[name], "").split()} - {""}
        leaves = {"errors"} if name.startswith("core.") else LEAVES
        if package[name]:
            found += [
                f"{name} imports {t or 'torchft_x'}" for t in targets if t not in leaves and package[t] not in allowed
            ]
    return sorted(found)


def test_a_package_imports_only_what_the_table_allows() -> None:
    assert trespasses(MODULES, WALLS) == []


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("from torchft_x.core.deep.rule import decide", []),
        ("from torchft_x.errors import RefusedError", []),
        ("from torchft_x.rpc.server import serve", ["core.types imports rpc.server"]),
        ("from torchft_x import rpc", ["core.types imports rpc"]),
        ("def f():\n    import torchft_x.rpc.made_pb2", ["core.types imports rpc"]),
        ("from torchft_x import env", ["core.types imports env"]),  # a leaf, but not to core
        ("from torchft_x import Manager", ["core.types imports torchft_x"]),
    ],
)
def test_a_forbidden_import_is_refused(tmp_path: Path, line: str, refused: list[str]) -> None:
    names = ["__init__", "env", "errors", "core/__init__", "core/deep/__init__", "core/deep/rule", "rpc/__init__"]
    texts = dict.fromkeys(names, "") | {"core/types": line, "rpc/server": "from torchft_x import core, env"}
    for name, text in texts.items():
        path = tmp_path / "torchft_x" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert trespasses(source.read(tmp_path), {"core.deep": "", "core": "core.deep", "rpc": "core"}) == refused


def test_the_table_has_every_package_and_no_circle() -> None:
    assert set(WALLS) == {m.package for m in MODULES} - {""}
    above: set[str] = set()
    for package, allowed in WALLS.items():
        assert set(allowed.split()) <= above, f"{package} may import only from packages above it in the table"
        above.add(package)


def test_a_package_has_at_most_ten_files() -> None:
    files = Counter(m.package for m in MODULES if not m.is_face)
    assert max(files.values()) <= 10, (
        f"{files.most_common(1)}: files that decide one thing belong in a package of their own"
    )


def test_the_core_is_standard_library_only() -> None:
    allowed = {"torchft_x", *sys.stdlib_module_names}
    allowed -= {"socket", "threading", "time", "asyncio", "logging", "random", "os", "subprocess"}
    for module in MODULES:
        if module.name.split(".")[0] == "core":
            libraries = {name.split(".")[0] for name in module.imports}
            assert libraries <= allowed, f"{module.name}: the core has no clock, socket, thread, log or other library"


def test_only_rpc_knows_grpc_and_nobody_unpickles() -> None:
    for module in MODULES:
        libraries = {name.split(".")[0] for name in module.imports}
        assert "grpc" not in libraries or module.name.split(".")[0] == "rpc", f"{module.name} imports grpc"
        assert "pickle" not in libraries, f"{module.name} imports pickle"


def test_only_env_reads_the_environment() -> None:
    for module in MODULES:
        for node in ast.walk(module.tree):
            touched = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
            if touched and ast.unparse(node).split(".")[0] == "os":
                assert module.name == "env", f"{module.name}, line {node.lineno}"


@pytest.mark.parametrize("module", NO_TORCH_AT_START)
def test_start_up_without_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr or f"{module} loads torch or numpy"


def test_every_package_is_in_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in {f"torchft_x.{m.package}".rstrip(".") for m in MODULES}:
        assert f'"{name}"' in text, f"{name} is missing from [tool.setuptools] packages"


def test_every_public_name_loads() -> None:
    import torchft_x

    for name in torchft_x.__all__:
        assert getattr(torchft_x, name) is not None
