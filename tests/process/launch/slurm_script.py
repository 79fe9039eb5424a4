"""Print the batch script of the stock `slurm` scheduler for an app of ours.

Usage: ``python -m tests.process.launch.slurm_script OPTIONS``

OPTIONS are the arguments of `script` as JSON. It runs as a process, because the other TorchX line has an environment of
its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from torchx import specs
from torchx.schedulers.slurm_scheduler import create_scheduler

from torchft_x.launch.schedulers.role import FtRole, RoleFacts

NASTY = {
    "COMMA": "0,1,2",
    "LOOKS_LIKE_TWO": "a,B=b",
    "SPACES": " a  b ",
    "NEWLINES": "one\ntwo\n",
    "QUOTES": 'it\'s "quoted" `not run`',
    "DOLLAR": "$HOME ${HOME} $(id)",
    "PERCENT": "%j %t 100%",
    "BACKSLASH": "a\\nb\\",
    "COLON": "a:",
    "EMPTY": "",
    "UMLAUT": "ä→",
}
"""Values that a shell, sbatch or srun might split or expand."""


def script(
    command: list[str],
    *,
    groups: int = 2,
    env: dict[str, str] | None = None,
    gpu: int = 0,
    image: str = "",
    mounts: bool = False,
    cfg: dict[str, Any] | None = None,
    lighthouses: int = 1,
) -> str:
    """Return the batch script of an app with so many lighthouses and trainer groups, which all run `command`."""
    roles = []
    for kind, replicas in (("lighthouse", lighthouses), ("trainer", groups)):
        fields: dict[str, Any] = {
            "name": kind,
            "image": image,
            "entrypoint": command[0],
            "args": command[1:],
            "env": {
                **({"TORCHFT_X_LIGHTHOUSE_AT": "${rank0_env}:30123"} if lighthouses == 1 else {}),
                "KIND": kind,
                "ID": "${replica_id}",
                **(env or {}),
            },
            "num_replicas": replicas,
            "resource": specs.Resource(cpu=2, gpu=gpu if kind == "trainer" else 0, memMB=100),
            "max_retries": 3,
            "mounts": [specs.BindMount("/a", "/b")] if mounts else [],
        }
        facts = RoleFacts(
            kind="lighthouse" if kind == "lighthouse" else "trainer", groups=groups, lighthouses=lighthouses
        )
        roles.append(FtRole(**fields, ft=facts))
    info = create_scheduler("session").submit_dryrun(specs.AppDef(name="app", roles=list(roles)), cfg or {})
    text: str = info.request.materialize()
    return text


if __name__ == "__main__":
    print(script(**json.loads(sys.argv[1])))
