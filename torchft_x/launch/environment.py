"""The environment of what a supervisor starts. Pure: the supervisor's own goes in, the program's comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchft_x import env

# glibc gives memory back to the system and takes it again each step otherwise: thousands of page faults per step on
# CPU trainers. Left alone when the user tunes the allocator or brings another one.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "4294967296"}


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What every program of the job must know."""

    attempt: int
    lighthouse: str
    run_dir: str
    token_file: str | None
    advertise_host: str
    package_root: str | None  # to be put on PYTHONPATH; None: the package is installed


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(JobSettings):
    """What the trainer of one life must know, too."""

    group: str
    groups: int
    workers: int  # on this node
    life: str
    folder: str  # private, of this life: the workers' sockets
    cores: int  # of this host that we may use
    groups_here: int  # groups, or nodes of groups, that share this host
    record: str | None = None  # file for what it receives, with several lighthouses


def trainer_environment(base: Mapping[str, str], settings: TrainerSettings) -> dict[str, str]:
    """`base` with what the trainer needs. Ours wins where a group must be what it is; else what is set stays."""
    out = companion_environment(base, settings)
    out[env.REPLICA_GROUP_ID] = settings.group
    out[env.NUM_REPLICA_GROUPS] = str(settings.groups)
    out[env.LIFE] = settings.life
    out.pop(env.PRIVATE, None)
    if out.get(env.WORKER_SERVER) != "0":
        out[env.PRIVATE] = settings.folder
    out.pop(env.RECORD, None)
    if settings.record is not None:
        out[env.RECORD] = settings.record
    out.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # torch prints a C++ stack for each store error otherwise
    threads = settings.cores // (settings.workers * settings.groups_here)
    out.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    if not any(k.startswith("MALLOC_") or k in ("GLIBC_TUNABLES", "LD_PRELOAD") for k in out):
        out.update(ALLOCATOR)
    return out


def companion_environment(base: Mapping[str, str], settings: JobSettings) -> dict[str, str]:
    """`base` with what every program of the job needs to find the others."""
    out = dict(base)
    out[env.LIGHTHOUSE] = settings.lighthouse
    out[env.RUN_DIR] = settings.run_dir
    out[env.ATTEMPT] = str(settings.attempt)
    out[env.ADVERTISE_HOST] = settings.advertise_host
    if settings.token_file is not None:
        out[env.TOKEN_FILE] = settings.token_file
    out.pop(env.LAUNCHER_PID, None)  # of the supervisor, not of the program
    out.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash forked children (DataLoader workers)
    if settings.package_root is not None:
        paths = [p for p in out.get("PYTHONPATH", "").split(":") if p]
        if settings.package_root not in paths:
            out["PYTHONPATH"] = ":".join([*paths, settings.package_root])
    return out


def package_root(package_file: str, installed: tuple[str, ...]) -> str | None:
    """The folder that holds the package, unless it is one of the `installed` ones, which Python searches anyway.

    A script in ``scripts/`` of a bare clone finds the package by it. (An installed folder must not go on PYTHONPATH:
    it would come before the standard library.)
    """
    root = str(Path(package_file).resolve().parent.parent)
    return None if root in {str(Path(p).resolve()) for p in installed} else root
