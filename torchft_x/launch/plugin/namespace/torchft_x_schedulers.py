"""Installed as ``torchx_plugins.schedulers.torchft_x_schedulers``, where the nightly line of TorchX looks for schedulers.

It is imported by every torchx command, so it imports nothing that it need not. The first function by the order of the
alphabet is TorchX's default scheduler, which is to stay `local_ft`.
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
