"""How TorchX 0.7.0 learns of our schedulers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torchft_x.launch.plugin.command import register


def test_a_torchx_that_knows_it_already_or_looks_otherwise_is_left_alone() -> None:
    def known(**factories: Any) -> SimpleNamespace:
        return SimpleNamespace(DEFAULT_SCHEDULER_MODULES={"a": "b"}, get_scheduler_factories=lambda: factories)

    there, new = known(local_ft=None, slurm_ft=None, kubernetes_ft=None), known()
    for where in (there, new, SimpleNamespace(), SimpleNamespace(DEFAULT_SCHEDULER_MODULES=())):
        register(where)
    assert there.DEFAULT_SCHEDULER_MODULES == {"a": "b"}
    assert list(new.DEFAULT_SCHEDULER_MODULES) == ["a", "local_ft", "slurm_ft", "kubernetes_ft"]
