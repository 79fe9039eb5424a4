"""Plugin ``torchx_plugins.schedulers.torchft_x_schedulers``: registers our schedulers with the nightly line of TorchX.

Every torchx command imports this module, so it imports our schedulers lazily. The first function in alphabetical order is
TorchX's default scheduler, which must be `local_ft`.
"""

from __future__ import annotations

from typing import Any

from torchx.plugins import register


@register.scheduler(name="local_ft")  # type: ignore[untyped-decorator]
def local_ft(session_name: str, **options: Any) -> Any:
    from torchft_x.launch.plugin.scheduler import create_scheduler

    return create_scheduler(session_name, **options)


@register.scheduler(name="kubernetes_ft")  # type: ignore[untyped-decorator]
def on_kubernetes(session_name: str, **options: Any) -> Any:
    from torchft_x.launch.plugin.kubernetes import create_scheduler

    return create_scheduler(session_name, **options)


@register.scheduler(name="slurm_ft")  # type: ignore[untyped-decorator]
def on_slurm(session_name: str, **options: Any) -> Any:
    from torchft_x.launch.plugin.slurm import create_scheduler

    return create_scheduler(session_name, **options)
