"""How TorchX 0.7.0 learns of our schedulers."""

from __future__ import annotations

from tests.process.programs import python

LIST = (
    "import torchx.schedulers as s; from torchft_x.launch.plugin.command import CmdFt; "
    "before = [*s.get_scheduler_factories()]; CmdFt(); CmdFt(); after = [*s.get_scheduler_factories()]; "
    "print(before, after, s.get_default_scheduler_name() == before[0], sep='\\n')"
)


def test_stock_schedulers_stay_and_so_does_the_default() -> None:
    before, after, default = (eval(line) for line in python("-c", LIST).stdout.splitlines())
    assert after == [*before, "local_ft", "slurm_ft", "kubernetes_ft"]
    assert default
