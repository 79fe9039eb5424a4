"""Renders a job as a TorchX app, and finds the run directory of an app. Tests compare apps with golden files.

The roles are ``lighthouse`` (one or several replicas), ``trainer`` with one replica per group, or per node of a group, and
the extra roles. The lighthouse ends when the groups are done, and its exit code is the job's. It is the first role, so that
TorchX's macro for the first replica's host means the lighthouse's. A job with a lighthouse outside has no such role.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from torchx import specs

from torchft_x import env
from torchft_x.address_files import LIGHTHOUSES
from torchft_x.errors import ConfigError
from torchft_x.launch.job.job import DEBUG_ENV, ExtraRole, FtJob, FtLighthouse
from torchft_x.launch.schedulers.role import FtRole, RoleFacts


def to_app(job: FtJob) -> specs.AppDef:
    """Return the job's app. Pure: equal jobs give equal apps."""
    roles = [] if job.lighthouse else [_lighthouse(job)]
    roles += [_trainer(job), *(_sidecar(job, role) for role in job.extra_roles)]
    # The hooks are on the last role: all roles share the scheduler's request, and the others are adjusted by then.
    roles[-1].ft = dataclasses.replace(roles[-1].ft, hooks=job.hooks)
    return specs.AppDef(name=job.name, roles=list(roles))


def lighthouse_app(job: FtLighthouse) -> specs.AppDef:
    """Return the app of a stand-alone lighthouse: one role, which runs until it is stopped."""
    args = ["-m", "torchft_x", "lighthouse", "--bind", f"[::]:{job.port}", "--min_replicas", str(job.min_replicas)]
    times, files = ("join_timeout_ms", "heartbeat_timeout_ms", "quorum_tick_ms"), ("lease_dir", "state_file")
    for flag in (*times, *files, "run_dir", "token_file"):
        args += [f"--{flag}", str(getattr(job, flag))] if getattr(job, flag) else []
    environ = {env.LOG_LEVEL: job.log_level, "PYTHONUNBUFFERED": "1", **_common(job)}
    role = FtRole(
        name="lighthouse",
        image=job.image,
        entrypoint=job.python,
        args=args,
        env={**environ, env.RUN_DIR: job.run_dir} if job.run_dir else environ,
        num_replicas=1,
        resource=job.resource,
        ft=RoleFacts(kind="lighthouse", groups=0, min_replicas=job.min_replicas, own_lighthouse=False),
    )
    return specs.AppDef(name=job.name, roles=[role])


def run_dir_of(app: specs.AppDef, cfg: Mapping[str, Any]) -> str:
    """Return the job's run directory: the component's, or the option's, or a new one. Raise `ConfigError` if they differ."""
    mine = {role.env.get(env.RUN_DIR) for role in app.roles} - {None}
    given = cfg.get("run_dir")
    if mine:
        (own,) = mine if len(mine) == 1 else [sorted(str(m) for m in mine)[0]]
        if given and os.path.abspath(str(given)) != own:
            raise ConfigError(
                f"-cfg run_dir={given}: the component has a run directory, {own}; choose it by --run_dir."
            )
        return str(own)
    return os.path.abspath(str(given)) if given else os.path.abspath(os.path.join("runs", specs.macros.app_id))


def _lighthouse(job: FtJob) -> FtRole:
    """Return the lighthouse's role. Its address is added at its start: only there is known whether it has its own host."""
    groups = ",".join(str(g) for g in range(job.replicas))
    args = ["-m", "torchft_x", "lighthouse", "--min_replicas", str(job.min_replicas)]
    # A job's own folder: the lease of one that has ended holds its verdict.
    lease_dir = f"{job.run_dir}/{LIGHTHOUSES}/{specs.macros.app_id}"
    args += ["--lease_dir", lease_dir] if job.lighthouses > 1 else []
    args += ["--job_groups", groups, "--job_min_replicas", str(job.min_replicas), "--run_dir", job.run_dir]
    return FtRole(
        name="lighthouse",
        image=job.image,
        entrypoint=job.python,
        args=args,
        env=_env(job),
        num_replicas=job.lighthouses,
        resource=specs.resource(cpu=1, gpu=0, memMB=512),
        mounts=list(job.mounts),
        ft=_facts(job, "lighthouse"),
    )


def _trainer(job: FtJob) -> FtRole:
    args = [*(["-m", "torchft_x.compat"] if job.module else []), "-m", "torchft_x", "supervise"]
    if job.nodes_per_replica == 1:
        args += ["--group", "${replica_id}"]
    else:  # replica k is node k % N of group k // N
        args += ["--replica", "${replica_id}", "--nodes", str(job.nodes_per_replica)]
    args += ["--groups", str(job.replicas), "--workers"]
    args += [",".join(map(str, job.workers_by_group or (job.workers_per_replica,)))]
    args += ["--max_restarts", str(job.max_restarts), "--run_dir", job.run_dir]
    args += ["--own_gpus"] if job.resource.gpu > 0 else []
    args += ["--health", _as_given(job.health)] if job.health else []
    program = ("-m", job.module) if job.module else (job.script,)
    args += ["--", *map(_as_given, (*program, *job.script_args))]
    return FtRole(
        name="trainer",
        image=job.image,
        entrypoint=job.python,
        args=args,
        env=_user_env(job, {}) | _env(job),
        num_replicas=job.replicas * job.nodes_per_replica,
        resource=job.resource,
        mounts=list(job.mounts),
        ft=_facts(job, "trainer"),
    )


def _sidecar(job: FtJob, role: ExtraRole) -> FtRole:
    name = role.name if role.replicas == 1 else f"{role.name}-${{replica_id}}"  # so that each replica has its own logs
    args = ["-m", "torchft_x", "accompany", "--name", name, "--run_dir", job.run_dir]
    python = "python" if role.image else job.python
    args += ["--no_restart_code", "0"]  # an extra role never decides the job's outcome
    args += ["--max_restarts", str(role.max_restarts), "--", *map(_as_given, role.words(python))]
    return FtRole(
        name=role.name,
        image=role.image or job.image,
        entrypoint=python,
        args=args,
        env=_user_env(job, role.env) | _env(job),
        num_replicas=role.replicas,
        resource=role.resource,
        mounts=list(job.mounts),
        ft=dataclasses.replace(_facts(job, "sidecar"), max_restarts=role.max_restarts),
    )


def _facts(job: FtJob, kind: Literal["lighthouse", "trainer", "sidecar"]) -> RoleFacts:
    return RoleFacts(
        kind=kind,
        groups=job.replicas,
        nodes=job.nodes_per_replica,
        min_replicas=job.min_replicas,
        own_lighthouse=not job.lighthouse,
        lighthouses=job.lighthouses,
        max_restarts=job.max_restarts,
    )


def _user_env(job: FtJob, more: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables for a role that runs the user's program. `more` are the role's own. `_env` overrides all."""
    given = {**job.env, **more}
    out = {**(DEBUG_ENV if job.debug else {}), **{name: _as_given(value) for name, value in given.items()}}
    out.pop(env.LIGHTHOUSE, None)  # already in `job.lighthouse`
    return out


def _as_given(word: str) -> str:
    """Escape ``$$``, which TorchX would replace by ``$`` along with its macros."""
    return word.replace("$$", "$$$$")


def _env(job: FtJob) -> dict[str, str]:
    """Return the variables of every role. They never contain the token: TorchX prints the app, schedulers show it to others."""
    out = {
        env.RUN_DIR: job.run_dir,
        env.LOG_LEVEL: job.level,
        env.MIN_REPLICAS: str(job.min_replicas),
        "PYTHONUNBUFFERED": "1",
    }
    out |= _common(job)
    if job.token_file:
        out[env.TOKEN_FILE] = job.token_file
    if job.lighthouse:
        out[env.LIGHTHOUSE] = ",".join(job.lighthouse)
    elif job.lighthouses == 1:  # else only the address file names the one that serves
        out[env.LIGHTHOUSE_AT] = f"${{rank0_env}}:{job.lighthouse_port}"
    return out


def _common(job: FtJob | FtLighthouse) -> dict[str, str]:
    log_format = {} if job.log_format == "text" else {env.LOG_FORMAT: job.log_format}
    return log_format | ({env.TLS: job.tls} if job.tls else {})
