"""``torchx ft COMMAND ...``, which runs ``torchft_x COMMAND ...``, and registers our schedulers with TorchX 0.7.0.

TorchX creates an object of each registered command before it looks up its schedulers, so the command's constructor can add
some. An entry point for a scheduler would remove all of TorchX's own on 0.7.0. The nightly line finds ours in the namespace
`torchx_plugins`.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from torchx import schedulers
from torchx.cli.cmd_base import SubCommand

_SCHEDULERS = {
    "local_ft": "torchft_x.launch.plugin.scheduler",
    "slurm_ft": "torchft_x.launch.plugin.slurm",
    "kubernetes_ft": "torchft_x.launch.plugin.kubernetes",
}


def register(where: Any = schedulers) -> None:
    """Add our schedulers to TorchX's own, unless they are known already. TorchX's default scheduler does not change."""
    known = getattr(where, "DEFAULT_SCHEDULER_MODULES", None)
    if isinstance(known, dict):
        there = where.get_scheduler_factories()
        known.update({name: module for name, module in _SCHEDULERS.items() if name not in there and name not in known})


class CmdFt(SubCommand):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    def __init__(self) -> None:
        register()

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.description = "Run a command of torchft_x; `torchft_x --help` lists them."
        subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...")

    def run(self, args: argparse.Namespace) -> None:
        os.execv(sys.executable, [sys.executable, "-m", "torchft_x", *args.words])
