"""The component `diloco`: `torchx run ./components/diloco.py:diloco`.

Made by scripts/make_components.py: change it there. TorchX reads this file as text and runs it in surroundings of its
own: whole `def`s with plain annotations only, no helpers, no relative imports, no `from __future__`.
"""

import os
import sys
from typing import List, Optional

from torchx import specs

try:
    from torchft_x.launch.job.build import diloco_app
except ModuleNotFoundError:  # a bare clone: torchx doesn't search the current directory
    sys.path.insert(0, os.getcwd())
    try:
        from torchft_x.launch.job.build import diloco_app
    except ModuleNotFoundError as e:
        if e.name != "torchft_x":
            raise
        raise SystemExit(
            f"torchft_x is neither installed for {sys.executable} nor in {os.getcwd()}: run torchx in the clone, or "
            "install it: pip install PATH_OF_THE_CLONE."
        ) from None


def diloco(
    *script_args: str,
    script: str = "scripts/train_diloco.py",
    replicas: int = 2,
    workers_per_replica: int = 1,
    nodes_per_replica: int = 1,
    max_restarts: int = 10,
    min_replicas: int = 1,
    health: str = "",
    sync_steps: int = 10,
    num_fragments: int = 1,
    fragment_sync_delay: int = 0,
    quantize: str = "none",
    islands: str = "",
    name: str = "diloco",
    lighthouse: str = "",
    lighthouses: int = 1,
    run_dir: str = "",
    token_file: str = "",
    tls: str = "",
    tls_cert: str = "",
    tls_key: str = "",
    tls_ca: str = "",
    env: str = "",
    mounts: Optional[List[str]] = None,
    image: str = "",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    log_level: str = "info",
    log_format: str = "text",
    debug: str = "False",
) -> specs.AppDef:
    """Fault-tolerant training with few exchanges: groups train apart and average what they learned now and then.

    The script does it, as the default one shows; it finds the settings in TORCHFT_X_FAULT_TOLERANCE.

    Args:
        script_args: arguments of the script, after --; write a flag given twice as --a=1 --a=2
        script: Python file that each worker runs
        replicas: number of replica groups; each holds a whole copy of the model
        workers_per_replica: processes of one group, on all its nodes together
        nodes_per_replica: nodes (hosts, pods) of one group
        max_restarts: restarts of one group within an hour
        min_replicas: no step is taken, and the job can't go on, with fewer groups
        health: shell command, run before each start of a group; a host on which it fails is not used
        sync_steps: steps of a group between two exchanges of the same part of the model
        num_fragments: parts of the model that are exchanged in turn
        fragment_sync_delay: steps that an exchange may take in the background
        quantize: none, int8, int4 or fp8: what is exchanged
        islands: processes of each group, as in 1,2,3; only rank 0 of a group exchanges then
        name: of the job, as the scheduler shows it
        lighthouse: auto: the job brings its own; or HOST:PORT[,HOST:PORT] of running ones; empty: TORCHFT_LIGHTHOUSE if set, else auto
        lighthouses: how many the job brings: with 2 or more the others stand by
        run_dir: directory for events and logs, shared by the whole job; a new one below runs/ if empty
        token_file: file with the token of the lighthouse; made by the job's own one if empty
        tls: on: TLS between all processes; control: all but tensors; off; empty: TORCHFT_X_TLS if set, else off
        tls_cert: PEM file with a certificate of your own for all of the job; made if empty
        tls_key: PEM file with its key
        tls_ca: PEM file with the authority that signs the certificates of all of the job
        env: environment of the script, as in A=1,B=2
        mounts: of the containers, as in type=bind,src=PATH,dst=PATH,readonly,type=...
        image: container image, where the scheduler uses one; empty: this file system
        h: named resource of TorchX; wins over cpu, gpu and memMB
        cpu: cores of one group, on each of its nodes
        gpu: accelerators of one group, on each of its nodes
        memMB: memory of one group in MiB, on each of its nodes
        log_level: debug, info, warning or error
        log_format: text, or json for a log collector: one object a line
        debug: True or False; True: much is logged, by PyTorch and NCCL as well
    """
    return diloco_app(
        script,
        script_args,
        replicas=replicas,
        workers_per_replica=workers_per_replica,
        nodes_per_replica=nodes_per_replica,
        max_restarts=max_restarts,
        min_replicas=min_replicas,
        health=health,
        sync_steps=sync_steps,
        num_fragments=num_fragments,
        fragment_sync_delay=fragment_sync_delay,
        quantize=quantize,
        islands=islands,
        name=name,
        lighthouse=lighthouse,
        lighthouses=lighthouses,
        run_dir=run_dir,
        token_file=token_file,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        env=env,
        mounts=mounts,
        image=image,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        log_level=log_level,
        log_format=log_format,
        debug=debug,
    )
