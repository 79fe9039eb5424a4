"""torchtitan's train module in one process of a replica group, with torchft_x as its torchft (docs/trainers.md).

``torchx run ft.titan`` runs this file in each process. To start groups in another way, run
``python -m torchft_x.compat -m torchtitan.train`` with the flags of `of_group`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from torchft_x import env

sys.path[0] = os.getcwd()  # as `python -m torchtitan.train` has it, not this package's folder

import torchtitan.train  # type: ignore[import-not-found]  # noqa: E402, F401 - here, so that a group's workers are forked from a process that has it


def of_group(group: str, groups: int, given: Sequence[str]) -> list[str]:
    """Return the arguments that make a process one of this group, except those in `given`.

    They enable checkpoints: without them, a group that comes back in torchtitan receives counters, but no weights.
    """
    ours = {
        "fault_tolerance.enable": (),
        "fault_tolerance.replica_id": (group,),
        "fault_tolerance.group_size": (str(groups),),
        "checkpoint.enable": (),
    }
    said = {word.partition("=")[0].lstrip("-").replace("-", "_").replace(".no_", ".") for word in given}
    return [word for name, value in ours.items() if name not in said for word in (f"--{name}", *value)]


if __name__ == "__main__":
    mine = of_group(env.read(env.REPLICA_GROUP_ID) or "0", env.read_int(env.NUM_REPLICA_GROUPS, 1) or 1, sys.argv[1:])
    sys.argv[1:] = [*mine, *sys.argv[1:]]
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
