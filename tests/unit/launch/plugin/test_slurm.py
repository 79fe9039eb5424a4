"""TorchX's interface of slurm_ft, with recorded answers of Slurm's; real jobs are in tests/extended/slurm/test_slurm_ft.py."""

from __future__ import annotations

from torchft_x.launch.plugin.slurm import create_scheduler
from torchft_x.launch.slurm import options


def test_options_have_their_help() -> None:
    opts = dict(create_scheduler("here").run_opts())
    assert set(options.OPTIONS) <= set(opts)
    assert all(option.help for option in opts.values())
