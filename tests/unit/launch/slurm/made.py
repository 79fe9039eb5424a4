"""Slurm requests and batch scripts of a small job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchx.specs import AppDef

from torchft_x.launch.job.build import ft_app
from torchft_x.launch.slurm.build import Request, build
from torchft_x.launch.slurm.script import RoleScript

SCRIPT = Path(__file__).parents[4] / "scripts/train_ddp.py"


def request(app: AppDef | None = None, **cfg: Any) -> Request:
    made = app or ft_app(str(SCRIPT), ["--steps", "5"], replicas=3, run_dir="/shared/run")
    return build(made, cfg, app_id="ddp-x", run_dir="/shared/run")


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def spec(**changed: Any) -> RoleScript:
    values: dict[str, Any] = {
        "role": "trainer", "kind": "sidecar", "command": ("prog",), "env": {}, "run_dir": "/r",
        "folder": "/home",
    }  # fmt: skip
    return RoleScript(**{**values, **changed})
