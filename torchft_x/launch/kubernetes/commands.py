"""``torchft_x cancel``, ``scale`` and ``log`` for a job of kubernetes_ft."""

from __future__ import annotations

import sys

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs, scale
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.handle import is_handle, parse


def end(job: str) -> str:
    """Remove the job's objects and return a sentence about it. Raise `ClusterError` or `ConfigError`."""
    handle = parse(job)
    if not jobs.cancel(Cluster(handle.context, handle.namespace), handle.app):
        raise ConfigError(f"there is no job {handle.app}.")
    return f"The job {handle.app} is removed."


def resize(job: str, wanted: int) -> tuple[str, int]:
    """Change the number of groups. Return the app id and the former number. Raise `ClusterError` or `ConfigError`."""
    handle = parse(job)
    return handle.app, scale.resize(Cluster(handle.context, handle.namespace), handle.app, wanted).before


def log(argv: list[str]) -> int:
    """Run ``torchft_x log`` and return the exit code. Raise `ClusterError` or `ConfigError`."""
    parser = Parser(
        prog="torchft_x log",
        description="Print what a replica of a job of kubernetes_ft has printed, also in the pods before the newest.",
    )
    parser.add_argument("replica", help="kubernetes_ft://NAMESPACE/APP/ROLE/REPLICA")
    word = parser.parse_args(argv).replica
    job, role, replica = [*word.rsplit("/", 2), "", ""][:3]
    if not is_handle(job) or not replica.isdigit():
        raise ConfigError(f"{word[:300]} names no replica: write kubernetes_ft://NAMESPACE/APP/ROLE/REPLICA.")
    handle = parse(job)
    cluster = Cluster(handle.context, handle.namespace)
    pods = jobs.pods_of(cluster, handle.app, role, int(replica))
    if not pods:
        raise ConfigError(f"the job {handle.app} has no pod of {role}/{replica} any more.")
    for pod in pods:
        print(f"--- {pod['metadata']['name']}", file=sys.stderr, flush=True)
        for line in jobs.written(cluster, pod):
            sys.stdout.write(line)
        sys.stdout.flush()
    return 0
