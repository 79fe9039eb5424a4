"""Environment variables of the programs that a supervisor starts. Pure: computed from the supervisor's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchft_x.net import Address

# By default glibc returns memory to the system and takes it again each step: thousands of page faults per step on CPU
# trainers. These are not set if the user tunes the allocator or brings another one.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "4294967296"}


def tuned(base: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return `base` with variables that tune a trainer with so many threads, unless they are set."""
    out = dict(base)
    out.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # by default torch prints a C++ stack for each store error
    out.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    if not any(k.startswith("MALLOC_") or k in ("GLIBC_TUNABLES", "LD_PRELOAD") for k in out):
        out.update(ALLOCATOR)
    return out


def with_package(base: Mapping[str, str], package_root: str | None) -> dict[str, str]:
    """Return `base` with `package_root` on PYTHONPATH, unless that is None."""
    out = dict(base)
    paths = [p for p in out.get("PYTHONPATH", "").split(":") if p]
    if package_root is not None and package_root not in paths:
        out["PYTHONPATH"] = ":".join([*paths, package_root])
    return out


def package_root(package_file: str, installed: tuple[str, ...]) -> str | None:
    """Return the folder that holds the package, or None if it is one of `installed`, which Python searches anyway.

    A script in ``scripts/`` of a bare clone finds the package by this folder. An installed folder must not go on PYTHONPATH,
    where it would come before the standard library.
    """
    root = str(Path(package_file).resolve().parent.parent)
    return None if root in {str(Path(p).resolve()) for p in installed} else root


# torchrun sets this in its own environment, and workers inherit it.
_SIGNALS = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}


def worker_environment(
    common: Mapping[str, str],
    store: Address,
    folder: str | Path,
    *,
    name: str,
    local_rank: int,
    workers: int,
    node: int = 0,
    nodes: int = 1,
) -> dict[str, str]:
    """Return the environment of one of a node's `workers`, with the same variables as under torchrun (a test compares the two).

    `store` is the address of the group's store, `folder` the attempt's private folder, `name` torchrun's --rdzv_id.
    """
    rank, total = node * workers + local_rank, nodes * workers
    out = {**common, **_SIGNALS}
    out |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": str(node),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(total),
        "LOCAL_WORLD_SIZE": str(workers),
        "ROLE_WORLD_SIZE": str(total),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": name,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(error_file(folder, local_rank)),
    }
    out.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return out


def error_file(folder: str | Path, local_rank: int) -> Path:
    """Return the file to which a script with torchelastic's ``@record`` writes its error. Its folder must be made first."""
    return Path(folder, "torchelastic", "attempt_0", str(local_rank), "error.json")
