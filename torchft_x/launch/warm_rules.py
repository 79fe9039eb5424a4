"""When a life may be forked from the warm parent, and what its workers find in their environment. Pure.

What a cold worker is told by torchrun, a warm one is told here, variable by variable (a test compares the two). What
the parent can't give a child any more, because a library read it when it was loaded, makes the next life a cold one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchft_x import env

TORCH = (
    "torch",
    "torch.distributed",
    "torch._dynamo",  # every optimizer imports it when it is made: a second
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)
"""Imported by the warm parent of every group."""
OURS = tuple(f"torchft_x.{name}" for name in ("train", "train.manager", "train.ddp", "train.optim", "train.data"))
OURS += ("torchft_x.observe", "torchft_x.rpc.group_server", "torchft_x.transfer", "torchft_x.comm", "fsspec")

# Different in each life, and read by nobody before the script runs.
_OF_A_LIFE = {env.ATTEMPT, env.LIFE, env.LIGHTHOUSE, env.TOKEN_FILE, env.RECORD, env.PRIVATE}
# They change what torchrun does beside starting workers; only torchrun can do it.
_FOR_TORCHRUN = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT")
_TORCHRUN_OPTION = "PET_"  # PET_X is torchrun's option --x, unless that is given, as these are (`LifeSpec.argv`)
_GIVEN = "NNODES NPROC_PER_NODE MAX_RESTARTS MONITOR_INTERVAL RDZV_BACKEND RDZV_ENDPOINT RDZV_ID LOCAL_ADDR LOG_DIR"
_WITHOUT_EFFECT = {_TORCHRUN_OPTION + name for name in _GIVEN.split()}
# Torchrun writes this one into its own environment; workers inherit it.
_SIGNALS = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}


def why_never(given: Mapping[str, str], *, runner: str, nodes: int) -> str | None:
    """Why no life of this group is warm, as half a sentence; None: they may be."""
    if runner != "torchrun":
        return "it is run without torchrun"
    if env.read(env.WARM, "1", given) == "0":
        return f"{env.WARM} is 0"
    if nodes > 1:
        return "the group is on several nodes"
    for name in given:
        if name in _FOR_TORCHRUN or (name.startswith(_TORCHRUN_OPTION) and name not in _WITHOUT_EFFECT):
            return f"{name} is set, which is for torchrun"
    return None


def difference(parent: Mapping[str, str], life: Mapping[str, str]) -> str | None:
    """Why a parent that was started with one environment can't serve a life with the other; None: it can."""
    names = sorted(n for n in {*parent, *life} - _OF_A_LIFE if parent.get(n) != life.get(n))
    return f"{names[0]} has changed since the warm parent was started" if names else None


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """What torchrun would have agreed on with itself."""

    name: str  # --rdzv_id
    host: str  # --local_addr
    port: int  # of the group's store
    workers: int
    errors: str  # folder of error files


def worker_environment(life: Mapping[str, str], meet: Rendezvous, rank: int) -> dict[str, str]:
    """The environment of that worker of a group on one node."""
    workers = str(meet.workers)
    out = {**life, **_SIGNALS}
    out |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "WORLD_SIZE": workers,
        "LOCAL_WORLD_SIZE": workers,
        "ROLE_WORLD_SIZE": workers,
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": meet.host,
        "MASTER_PORT": str(meet.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": meet.name,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": f"{meet.errors}/{rank}/error.json",
    }
    out.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return out


def imported_by(script: str) -> list[str]:
    """Modules that a script's text imports at its top level. It is read, never run; not understood: none."""
    try:
        body = ast.parse(script).body
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
    return list(dict.fromkeys(names))


def is_installed(origin: str | None, installed: Iterable[str]) -> bool:
    """Whether a module's file lies in one of the folders that installed packages have: it won't be edited meanwhile."""
    return origin is not None and any(origin.startswith(f"{folder.rstrip('/')}/") for folder in installed)
