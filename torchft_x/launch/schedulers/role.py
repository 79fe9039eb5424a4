"""TorchX role of our apps, which adjusts the scheduler's request once the scheduler is known.

TorchX, with stock schedulers too, calls `pre_proc` for every role while it makes the scheduler's request. The adjustments
belong there because a component does not know whether the job runs on this machine, on Slurm or on Kubernetes.
"""

from __future__ import annotations

from typing import Any

from torchft_x.errors import TorchftXError
from torchft_x.launch.schedulers import adjust
from torchft_x.launch.schedulers.excepthook import refused
from torchft_x.launch.schedulers.facts import RoleWithFacts


class FtRole(RoleWithFacts):
    """Role that adjusts its scheduler's request. It changes no request of an unknown scheduler."""

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """Return the adjusted request. Print one sentence and raise `SystemExit` with code 2 if the job can't work there."""
        try:
            info = adjust(self, scheduler, dryrun_info)
            for hook in self.ft.hooks:
                changed = hook(scheduler, info)
                info = info if changed is None else changed
            return info
        except TorchftXError as e:
            raise refused(str(e)) from None
