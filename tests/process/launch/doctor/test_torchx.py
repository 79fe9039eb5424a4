"""TorchX's plugins and configuration files."""

from __future__ import annotations

from pathlib import Path

from torchft_x.launch.doctor.runner import Case
from torchft_x.launch.doctor.torchx import check_torchx


def test_our_schedulers_are_known_where_they_are_installed(tmp_path: Path) -> None:
    """`scheduler = local_ft` was a problem, because TorchX had been asked without its subcommands."""
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = local_ft\n")
    plugins, config = check_torchx(Case(environ={}, folder=tmp_path, home=tmp_path))
    assert config.level == "ok"
    assert all(name in plugins.text for name in ("local_ft", "slurm_ft", "kubernetes_ft"))


def test_a_torchx_that_can_not_load_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "torchx").mkdir()
    (tmp_path / "torchx" / "__init__.py").write_text("raise ImportError('plugin acme is broken')")
    first, *_ = check_torchx(Case(environ={}, folder=tmp_path, home=tmp_path))
    assert first.level == "problem"
    assert "plugin acme is broken" in first.text
