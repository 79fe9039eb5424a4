"""A job as a TorchX app: pure rendering, compared with golden files in the tests.

Two roles: the lighthouse, which ends when the groups are done and whose exit code is the job's, and ``trainer`` with
one replica per group. The lighthouse comes first, so that schedulers which name "the first replica's host" name it.
With a lighthouse outside the job there is only ``trainer``.
"""

from __future__ import annotations

from torchx import specs

from torchft_x import env
from torchft_x.launch.job import FtJob
from torchft_x.launch.role import FtRole, RoleFacts


def to_app(job: FtJob) -> specs.AppDef:
    """Nothing is read or made: the same job gives the same app."""
    roles = [_trainer(job)] if job.lighthouse is not None else [_lighthouse(job), _trainer(job)]
    return specs.AppDef(name=job.name, roles=list(roles))


def _lighthouse(job: FtJob) -> specs.Role:
    groups = ",".join(str(g) for g in range(job.replicas))
    args = ["-m", "torchft_x", "lighthouse", "--bind", "[::]:0", "--min_replicas", str(job.min_replicas)]
    args += ["--job_groups", groups, "--job_min_replicas", str(job.min_replicas), "--run_dir", job.run_dir]
    return FtRole(
        name="lighthouse",
        image=job.image,
        entrypoint=job.python,
        args=args,
        env=_env(job),
        num_replicas=1,
        resource=specs.resource(cpu=1, gpu=0, memMB=512),
        ft=RoleFacts(kind="lighthouse", groups=job.replicas, min_replicas=job.min_replicas),
    )


def _trainer(job: FtJob) -> specs.Role:
    args = ["-m", "torchft_x", "supervise", "--group", "${replica_id}", "--groups", str(job.replicas)]
    args += ["--workers", str(job.workers_per_replica), "--max_restarts", str(job.max_restarts)]
    args += ["--run_dir", job.run_dir, "--", job.script, *job.script_args]
    environ = {**job.env, **_env(job)}
    if job.lighthouse is not None:
        environ[env.LIGHTHOUSE] = job.lighthouse
    return FtRole(
        name="trainer",
        image=job.image,
        entrypoint=job.python,
        args=args,
        env=environ,
        num_replicas=job.replicas,
        resource=specs.resource(cpu=job.cpu, gpu=job.gpu, memMB=job.memMB, h=job.h),
        ft=RoleFacts(
            kind="trainer",
            groups=job.replicas,
            min_replicas=job.min_replicas,
            own_lighthouse=job.lighthouse is None,
        ),
    )


def _env(job: FtJob) -> dict[str, str]:
    """Of every role. The token itself never goes in here: TorchX prints the app, and schedulers show it to others."""
    return {env.RUN_DIR: job.run_dir, env.LOG_LEVEL: job.log_level, "PYTHONUNBUFFERED": "1"}
