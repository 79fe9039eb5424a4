"""``torchft_x cancel HANDLE`` and ``torchft_x scale HANDLE --replicas N`` for a job of kubernetes_ft."""

from __future__ import annotations

import sys

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.kubernetes import jobs, scale
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.handle import parse


def main(command: str, argv: list[str]) -> int:
    """The exit code; a mistake is one sentence and 2, a refusal of the cluster's one and 1."""
    try:
        return _cancel(argv) if command == "cancel" else _scale(argv)
    except TorchftXError as e:
        print(f"torchft_x {command}: {e}", file=sys.stderr)
        return 1 if isinstance(e, ClusterError) else 2


def _cancel(argv: list[str]) -> int:
    parser = Parser(prog="torchft_x cancel", description="End a job of kubernetes_ft: all its objects are removed.")
    parser.add_argument("job", help="kubernetes_ft://NAMESPACE/APP")
    handle = parse(parser.parse_args(argv).job)
    if not jobs.cancel(Cluster(namespace=handle.namespace), handle.app):
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
    made = scale.resize(Cluster(namespace=handle.namespace), handle.app, args.replicas)
    print(f"The job {handle.app} has {len(made.groups)} groups now; it had {made.before}.")
    return 0
