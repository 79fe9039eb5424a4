"""Adjusts requests of `slurm`: one heterogeneous job, with each replica as a component on its own node, and one ``srun``.

With TorchX's request, one death ends the whole job, and environment values are split at commas. After a node's death Slurm
is asked to requeue the job, which leaves a heterogeneous job pending forever. The adjusted request restarts groups in place.
A lighthouse gets no node of its own: the first runs beside the first trainer. docs/schedulers.md describes a node's death
and the tests on a real cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.arguments import set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.role import FtRole

_LIGHTHOUSE = "lighthouse-"  # prefix of a lighthouse's key in the request, before its number
# Arguments: the lighthouse's output files, the length of its command, its command, the trainer's command. The exit code is
# the higher of the two. The trap keeps the shell alive, and with it the step, during the grace period of both.
_BESIDE = """out=$1 err=$2 n=$3; shift 3
"${@:1:n}" >"$out" 2>"$err" & lighthouse=$!; shift "$n"
trap : TERM; "$@"; code=$?; wait "$lighthouse"; other=$?; exit $((code > other ? code : other))"""


def adjust(role: FtRole, info: Any) -> Any:
    """Return the adjusted request. Raise `ConfigError` if the job could not run. Slurm is not contacted."""
    request: Any = getattr(info, "request", None)
    replicas = _replicas(request, role)
    if not replicas:
        return info
    job_dir = getattr(request, "job_dir", None)
    _check(role, replicas, job_dir)
    if role.ft.kind == "trainer":
        _check_script(role.args, job_dir)
    for replica in replicas:
        _let_others_live(replica)
        _bind_free_port(replica, role)
        _pass_environment(replica)
    if role.ft.kind == "trainer" and role.ft.own_lighthouse:
        if role.ft.lighthouses > len(replicas):
            raise ConfigError(
                f"--lighthouses is {role.ft.lighthouses}, each on a node of its own beside a group, but the job has "
                f"{len(replicas)}; give as many groups, or fewer lighthouses."
            )
        for index, trainer in enumerate(replicas[: role.ft.lighthouses]):
            lighthouse = request.replicas.pop(f"{_LIGHTHOUSE}{index}", None)
            if lighthouse is not None:
                _run_beside(lighthouse, trainer)
    request.max_retries = 0  # TorchX would have Slurm requeue the whole job
    return info


def _replicas(request: Any, role: FtRole) -> list[Any]:
    """Return this role's components in TorchX's request, or none if its shape is unknown."""
    components = getattr(request, "replicas", None)
    if not isinstance(components, dict):
        return []
    found = [components.get(f"{role.name}-{k}") for k in range(role.num_replicas)]
    options = ("sbatch_opts", "srun_opts", "env")
    return [r for r in found if all(isinstance(getattr(r, o, None), dict) for o in options)]


def _check(role: FtRole, replicas: list[Any], job_dir: str | None) -> None:
    if role.mounts:
        raise ConfigError("Slurm mounts nothing: leave --mounts out and name paths that the nodes share.")
    if role.image not in ("", job_dir) or any("container-image" in r.srun_opts for r in replicas):
        raise ConfigError(
            f"The image {role.image} can't be used: on Slurm the job runs in the environment it is submitted from, not "
            "in containers; leave --image and workspace_type=docker out."
        )
    if env.TOKEN in role.env:
        raise ConfigError(
            f"{env.TOKEN} in --env would be readable for every user of the nodes, on srun's command line; "
            "set it in the shell that submits the job (Slurm passes it on), or use --token_file."
        )
    if any(":" in r.args for r in replicas):
        raise ConfigError(f"The role {role.name} has the argument ':', at which srun cuts its command line.")


def _check_script(args: list[str], job_dir: str | None) -> None:
    """Raise `ConfigError` if the script is not in `job_dir`. Without one the job starts in the current directory, which is checked."""
    if job_dir is None or "--" not in args:
        return
    script = args[args.index("--") + 1]
    if not Path(job_dir, script).is_file():
        raise ConfigError(
            f"The script {script} does not exist in job_dir {job_dir}, where the job would start; "
            "have the code copied there with --workspace, or leave job_dir out."
        )


def _let_others_live(replica: Any) -> None:
    """Isolate a component's end from the others, and make it one task with the requested cores."""
    replica.srun_opts |= {"kill-on-bad-exit": "0", "wait": "0"}
    for option in ("requeue", "ntasks"):
        replica.sbatch_opts.pop(option, None)
    replica.sbatch_opts |= {"ntasks": "1", "no-requeue": None}
    if "cpus-per-task" in replica.sbatch_opts:  # since Slurm 22.05 srun doesn't take it from the job
        replica.srun_opts["cpus-per-task"] = replica.sbatch_opts["cpus-per-task"]


def _bind_free_port(replica: Any, role: FtRole) -> None:
    """Let the lighthouse take a free port, and the others find it by its file: a fixed port may be another job's."""
    replica.env.pop(env.LIGHTHOUSE_AT, None)
    if role.ft.kind == "lighthouse" and role.ft.own_lighthouse:
        set_option(replica.args, "--bind", "[::]:0")


def _pass_environment(replica: Any) -> None:
    """Pass the environment by ``env K=V ... entrypoint``, because srun's ``--export=ALL,K=V,...`` splits values at commas."""
    variables = [f"{name}={value}" for name, value in replica.env.items()]
    replica.args = [*variables, replica.entrypoint, *replica.args]
    replica.entrypoint = "env"
    replica.env = {}
    replica.srun_opts["export"] = "ALL"


def _run_beside(lighthouse: Any, trainer: Any) -> None:
    """Run a lighthouse in a trainer's component, because Slurm places no two components on one node."""
    command = [lighthouse.entrypoint, *lighthouse.args]
    files = [lighthouse.srun_opts["output"], lighthouse.srun_opts["error"]]
    trainer.args = ["-c", _BESIDE, "torchft_x", *files, str(len(command)), *command, trainer.entrypoint, *trainer.args]
    trainer.entrypoint = "bash"
