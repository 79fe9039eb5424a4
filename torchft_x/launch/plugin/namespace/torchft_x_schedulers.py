"""Plugin ``torchx_plugins.schedulers.torchft_x_schedulers``: registers our schedulers with the nightly line of TorchX.

Every torchx command imports this module, so it imports our schedulers lazily. The first function in alphabetical order is
TorchX's default scheduler, which must be `local_ft`.
"""

from __future__ import annotations

import importlib
from typing import Any

from torchx.plugins import register


def _scheduler(name: str, module: str) -> Any:
    def create(session_name: str, **options: Any) -> Any:
        return importlib.import_module(f"torchft_x.launch.plugin.{module}").create_scheduler(session_name, **options)

    return register.scheduler(name=name)(create)


local_ft = _scheduler("local_ft", "scheduler")
on_kubernetes = _scheduler("kubernetes_ft", "kubernetes")
on_slurm = _scheduler("slurm_ft", "slurm")
