"""``torchft_x cancel`` and ``torchft_x scale``: dispatches to the commands of the job's scheduler."""

from __future__ import annotations

from torchft_x.launch.keeper import commands as keeper
from torchft_x.launch.kubernetes.handle import is_handle
from torchft_x.launch.slurm import commands as slurm
from torchft_x.launch.slurm.store import is_slurm_run


def main(command: str, argv: list[str]) -> int:
    """Run the command for the scheduler of the job that the arguments name. Return the exit code."""
    if any(is_handle(word) for word in argv):
        from torchft_x.launch.kubernetes import commands as kubernetes

        return kubernetes.main(command, argv)
    of_slurm = any(is_slurm_run(word) for word in argv if not word.startswith("-"))
    return slurm.main(command, argv) if of_slurm else keeper.main(command, argv)
