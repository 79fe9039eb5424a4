"""Imports and names that import-linter's contracts and ruff's bans (pyproject.toml) cannot check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import scaled

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torchft_x"
WITHOUT_TORCH = """
    __main__ core.lighthouse.machine core.group.machine rpc.lighthouse.main rpc.group.client rpc.supervisor.client
    launch.job.app launch.supervisor.group launch.supervisor.sidecar launch.doctor.checks launch.status.commands
    launch.status.live launch.keeper.commands launch.plugin.scheduler launch.plugin.slurm launch.plugin.kubernetes
    compat.modules compat.coordination observe.events
"""
"""Modules that must not load torch when they are imported; each imports the package itself."""


@pytest.mark.parametrize("module", WITHOUT_TORCH.split())
def test_start_up_without_torch(module: str) -> None:
    code = f"import torchft_x.{module}, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr or f"{module} loads torch or numpy"


def test_the_core_is_standard_library_only() -> None:
    for path in (PACKAGE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            libraries = {str(name).split(".")[0] for name in names} - {"torchft_x"}
            assert libraries <= set(sys.stdlib_module_names), f"{path}, line {node.lineno}"  # type: ignore[attr-defined]


def test_every_package_is_in_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "launch/plugin/namespace"}:
        name = ".".join(folder.relative_to(ROOT).parts)
        assert f'"{name}"' in text, f"{name} is missing from [tool.setuptools] packages"


def test_every_public_name_loads() -> None:
    import torchft_x

    for name in torchft_x.__all__:
        assert getattr(torchft_x, name) is not None
