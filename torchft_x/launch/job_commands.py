"""``torchft_x cancel`` and ``torchft_x scale``, carried out by the commands of the job's scheduler."""

from __future__ import annotations

from typing import Any

from torchft_x.arguments import Parser
from torchft_x.launch.keeper import commands as keeper
from torchft_x.launch.kubernetes.handle import is_handle
from torchft_x.launch.slurm import commands as slurm
from torchft_x.launch.slurm.store import is_slurm_run

_JOB = "of local_ft or slurm_ft: its run directory; of kubernetes_ft: kubernetes_ft://NAMESPACE/APP"


def cancel(argv: list[str]) -> int:
    """Run ``torchft_x cancel`` and return the exit code. Raise `TorchftXError`."""
    parser = Parser(prog="torchft_x cancel", description="End a job, in good order.")
    parser.add_argument("job", metavar="RUN_DIR|JOB", help=_JOB)
    job = parser.parse_args(argv).job
    print(_commands(job).end(job))
    return 0


def scale(argv: list[str]) -> int:
    """Run ``torchft_x scale`` and return the exit code. Raise `TorchftXError`."""
    parser = Parser(prog="torchft_x scale", description="Give a running job more replica groups, or fewer.")
    parser.add_argument("job", metavar="RUN_DIR|JOB", help=_JOB)
    parser.add_argument("--replicas", type=int, required=True, help="groups that it shall have")
    args = parser.parse_args(argv)
    app, before = _commands(args.job).resize(args.job, args.replicas)
    print(f"The job {app} has {args.replicas} groups now; it had {before}.")
    return 0


def _commands(job: str) -> Any:
    if is_handle(job):
        from torchft_x.launch.kubernetes import commands as kubernetes

        return kubernetes
    return slurm if is_slurm_run(job) else keeper
