"""``torchft_x cancel``, ``scale`` and ``log`` for a job of kubernetes_ft."""

from __future__ import annotations

import sys
import time
from typing import Any

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, UnreachableError
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.handle import is_handle
from torchft_x.launch.kubernetes.remote import Remote
from torchft_x.launch.kubernetes.rules import names, scale
from torchft_x.launch.kubernetes.rules.objects import BUDGET
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE
from torchft_x.launch.kubernetes.rules.state import newest
from torchft_x.timing import POLL

_HEARD = 150.0  # longest wait, in seconds, for a lighthouse to read the list: kubelets sync every minute or so


def end(job: str) -> str:
    """Remove the job's objects and return a sentence about it. Raise `ClusterError` or `ConfigError`."""
    remote = Remote(job)
    if not jobs.cancel(remote.cluster, remote.app):
        raise ConfigError(f"there is no job {remote.app}.")
    return f"The job {remote.app} is removed."


def resize(job: str, wanted: int) -> tuple[str, int]:
    """Change the number of groups. Return the app id and the former number. Raise `ClusterError` or `ConfigError`.

    Groups whose pods are deleted leave at a step boundary. The call may be repeated after a failure.
    """
    remote = Remote(job)
    cluster, app = remote.cluster, remote.app
    pods = cluster.list("Pod", jobs.of(app))
    change = scale.change(app, cluster.list("Job", jobs.of(app)), pods, _failed(remote), wanted)
    if change.again:
        _announce(remote, change, change.others)
    config = _announce(remote, change, change.groups)
    with jobs.if_there(BUDGET):
        cluster.patch(BUDGET, app, {"spec": {"minAvailable": change.pods - 1}})
    for name in change.going:
        cluster.delete("Job", name)
    for body in change.new:
        cluster.create(scale.keep_off(body, config))
    if change.again:
        where = f", not on {', '.join(change.unhealthy)}" if change.unhealthy else ""
        print(f"Started again{where}: group {', '.join(change.again)}.")
    return app, len(change.again) + len(change.others)


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
    remote = Remote(job)
    pods = remote.cluster.list("Pod", jobs.replica(remote.app, role, int(replica)))
    if not pods:
        raise ConfigError(f"the job {remote.app} has no pod of {role}/{replica} any more.")
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
        print(f"--- {pod['metadata']['name']}", file=sys.stderr, flush=True)
        for line in jobs.written(remote.cluster, pod):
            sys.stdout.write(line)
        sys.stdout.flush()
    return 0


def _failed(remote: Remote) -> dict[str, str]:
    """Return the groups that were given up, each with the reason, as far as the lighthouse can be asked."""
    try:
        rows = remote.overview().get("groups") or []
    except (ClusterError, UnreachableError):
        return {}
    return {row["group"]: row["more"] for row in rows if row["does"] == "failed"}


def _announce(remote: Remote, change: scale.Change, groups: tuple[str, ...]) -> dict[str, Any]:
    """Write the groups into the ConfigMap, and wait until the lighthouse knows, and so accepts, them.

    Return the ConfigMap. Raise `ClusterError` after `_HEARD` seconds.
    """
    cluster, app = remote.cluster, remote.app
    config = cluster.patch("ConfigMap", app, {"data": scale.data(groups, change.unhealthy)})
    _hasten(cluster, app, len(groups))
    deadline = time.monotonic() + _HEARD
    while trouble := _trouble(remote, groups):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the lighthouse of {app} has not heard of the new number within {_HEARD:g} s ({trouble}); nothing was made "
                "or deleted. Give the command again."
            )
        time.sleep(POLL)
    return config


def _hasten(cluster: Cluster, app: str, groups: int) -> None:
    """Annotate the lighthouse's pod, so that its kubelet updates the mounted ConfigMap at once, not within a minute or so."""
    pod = newest(cluster.list("Pod", f"{jobs.of(app)},{names.ROLE}={LIGHTHOUSE}"))
    if pod is not None:
        try:
            cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": {names.GROUPS: str(groups)}}})
        except ClusterError as e:
            if e.status != 404:  # a pod that replaces it reads the new list
                raise


def _trouble(remote: Remote, groups: tuple[str, ...]) -> str:
    """Return the reason why the lighthouse is not known to have the new list, or '' if it has it."""
    try:
        known = remote.overview().get("wanted")
    except (ClusterError, UnreachableError) as e:
        if isinstance(e, ClusterError) and e.status == 403:
            raise
        return str(e).rstrip(".")
    return "" if known == list(groups) else f"it has the groups {known}"
