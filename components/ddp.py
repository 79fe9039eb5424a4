"""The component `ddp`: installed as `ft.ddp`, and `torchx run ./components/ddp.py:ddp`; the same as in components.py.

TorchX reads this file as text and runs it in surroundings of its own: whole `def`s with plain annotations only,
no helpers, no relative imports, no `from __future__` (tests/launch/test_components.py holds the copies equal).
"""

import os
import sys
from typing import Dict, Optional

from torchx import specs

try:
    from torchft_x.launch.build import component
except ModuleNotFoundError:  # a bare clone: torchx doesn't search the current directory
    sys.path.insert(0, os.getcwd())
    from torchft_x.launch.build import component


def ddp(
    *script_args: str,
    script: str = "scripts/train_ddp.py",
    replicas: int = 2,
    workers_per_replica: int = 1,
    max_restarts: int = 10,
    min_replicas: int = 1,
    name: str = "ddp",
    lighthouse: str = "auto",
    run_dir: str = "",
    env: Optional[Dict[str, str]] = None,
    image: str = "",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    log_level: str = "info",
) -> specs.AppDef:
    """Fault-tolerant data parallel training: every worker holds the whole model, groups average their gradients.

    Args:
        script_args: arguments of the script, after --
        script: Python file that each worker runs
        replicas: number of replica groups; each holds a whole copy of the model
        workers_per_replica: processes of one group
        max_restarts: restarts of one group within an hour
        min_replicas: the job can't go on with fewer groups
        name: of the job, as the scheduler shows it
        lighthouse: address (http://HOST:PORT) of a running lighthouse, or auto: TORCHFT_LIGHTHOUSE if set, else the job brings its own
        run_dir: directory for events and logs, shared by the whole job; a new one below runs/ if empty
        env: environment of the script, as in A=1,B=2
        image: container image, where the scheduler uses one
        h: named resource; wins over cpu, gpu and memMB
        cpu: cores of one group
        gpu: accelerators of one group
        memMB: memory of one group in MiB
        log_level: debug, info, warning or error
    """
    return component(
        script_args,
        script=script,
        replicas=replicas,
        workers_per_replica=workers_per_replica,
        max_restarts=max_restarts,
        min_replicas=min_replicas,
        name=name,
        lighthouse=lighthouse,
        run_dir=run_dir,
        env=env,
        image=image,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        log_level=log_level,
    )
