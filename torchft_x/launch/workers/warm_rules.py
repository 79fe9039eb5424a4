"""When a life may be forked from the warm parent, and what that imports. Pure.

What the parent can't give a child any more, because a library read it when it was loaded, makes the next life a cold one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from torchft_x import env

TORCH = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)
"""Imported by the warm parent of every group."""
LAZY_COMPILER = "torchft_x.train.lazy_compiler"
"""Before these, so that none of them loads the compiler: a script that compiles loads it in its workers (decision 80)."""
OURS = tuple(f"torchft_x.{name}" for name in ("train", "train.manager", "train.ddp", "train.optim", "train.data"))
OURS += ("torchft_x.observe", "torchft_x.rpc.group.server", "torchft_x.transfer", "torchft_x.comm", "fsspec")

# Different in each life, and read by nobody before the script runs.
_OF_A_LIFE = {env.ATTEMPT, env.LIFE, env.LIGHTHOUSE, env.TOKEN_FILE, env.PRIVATE}


def why_never(given: Mapping[str, str]) -> str | None:
    """Why no life of this group is warm, as half a sentence; None: they may be."""
    return f"{env.WARM} is 0" if env.read(env.WARM, "1", given) == "0" else None


def difference(parent: Mapping[str, str], life: Mapping[str, str]) -> str | None:
    """Why a parent that was started with one environment can't serve a life with the other; None: it can."""
    names = sorted(n for n in {*parent, *life} - _OF_A_LIFE if parent.get(n) != life.get(n))
    return f"{names[0]} has changed since the warm parent was started" if names else None


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
