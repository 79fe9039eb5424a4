"""``torchft_x cancel HANDLE``, ``scale --replicas N HANDLE`` and ``log HANDLE/ROLE/REPLICA`` for a job of kubernetes_ft."""

from __future__ import annotations

import sys

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs, scale
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.handle import is_handle, parse


def main(command: str, argv: list[str]) -> int:
    """Run a command and return the exit code. Raise `ClusterError` or `ConfigError`."""
    return {"cancel": _cancel, "scale": _scale, "log": _log}[command](argv)


def _cancel(argv: list[str]) -> int:
    parser = Parser(prog="torchft_x cancel", description="End a job of kubernetes_ft: all its objects are removed.")
    parser.add_argument("job", help="kubernetes_ft://NAMESPACE/APP")
    handle = parse(parser.parse_args(argv).job)
    if not jobs.cancel(Cluster(handle.context, handle.namespace), handle.app):
        raise ConfigError(f"there is no job {handle.app}.")
    print(f"The job {handle.app} is removed.")
    return 0


def _scale(argv: list[str]) -> int:
    parser = Parser(
        prog="torchft_x scale", description="Give a running job of kubernetes_ft more replica groups, or fewer."
    )
    parser.add_argument("job", help="kubernetes_ft://NAMESPACE/APP")
    parser.add_argument("--replicas", type=int, required=True, help="groups that it shall have")
    args = parser.parse_args(argv)
    handle = parse(args.job)
    made = scale.resize(Cluster(handle.context, handle.namespace), handle.app, args.replicas)
    print(f"The job {handle.app} has {len(made.groups)} groups now; it had {made.before}.")
    return 0


def _log(argv: list[str]) -> int:
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
