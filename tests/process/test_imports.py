"""Imports and names that import-linter's contracts and ruff's bans (pyproject.toml) cannot check."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.process.programs import ROOT, python

PACKAGE = ROOT / "torchft_x"
WITHOUT_TORCH = """
    __main__ core.lighthouse.machine core.group.machine rpc.lighthouse.main rpc.group.client rpc.supervisor_client
    launch.job.app launch.supervisor.group launch.supervisor.sidecar launch.doctor launch.status.commands
    launch.status.live launch.keeper.commands launch.plugin.scheduler launch.plugin.slurm launch.plugin.kubernetes
    compat.modules compat.coordination observe.events
"""
"""Modules that must not load torch when they are imported; each imports the package itself."""
WITHOUT_GRPC = "launch.supervisor.lighthouse launch.cli"
LOADS = """
import importlib, sys
from torchft_x import ExtraRole, ft_app  # as a file with components does
def check(modules, heavy):
    for module in modules.split():
        importlib.import_module("torchft_x." + module)
        if found := heavy & set(sys.modules):
            sys.exit(f"torchft_x.{module} loads {found}")
check(sys.argv[1], {"torch", "numpy", "grpc", "google.protobuf"})
check(sys.argv[2], {"torch", "numpy"})
"""


def test_start_up_without_torch() -> None:
    python("-c", LOADS, WITHOUT_GRPC, WITHOUT_TORCH)


@pytest.mark.parametrize("module", ["torchft_x", "torchft_x.rpc.lighthouse.main"])
def test_the_user_s_current_directory_shadows_no_module(module: str, tmp_path: Path) -> None:
    """A secrets.py or queue.py beside src/train.py ended every role of the job, while `python src/train.py` ran."""
    for name in ("grpc", "logging", "queue", "secrets", "select", "signal", "statistics", "typing"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError({name!r})")
    python("-m", module, *(["supervise"] if module == "torchft_x" else []), "--help", cwd=tmp_path)


def test_a_user_s_module_that_imports_us_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import torchft_x")
    (tmp_path / "mine" / "train.py").write_text("import beside")
    (tmp_path / "beside.py").touch()
    python("-m", "mine.train", "torchft_x", cwd=tmp_path)


def test_the_core_is_standard_library_only() -> None:
    for path in (PACKAGE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            libraries = {str(name).split(".")[0] for name in names} - {"torchft_x"}
            assert libraries <= set(sys.stdlib_module_names), f"{path}, line {node.lineno}"  # type: ignore[attr-defined]


def test_every_folder_of_modules_is_a_package() -> None:
    """setup.py looks for packages; others are missing from the wheel."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "launch/plugin/namespace"}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_every_public_name_loads_and_has_its_type() -> None:
    import torchft_x

    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")).body
    typed = {alias.name: node.module for node in stub if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == {"__version__": "torchft_x._version", **torchft_x._LAZY}
    for name in torchft_x.__all__:
        assert getattr(torchft_x, name) is not None
