"""``torchft_x cancel``, ``scale`` and ``log`` for a job of kubernetes_ft."""

from __future__ import annotations

import sys
import time
from typing import Any

from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.handle import is_handle, parse
from torchft_x.launch.kubernetes.rules import names, scale
from torchft_x.launch.kubernetes.rules.objects import BUDGET
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE
from torchft_x.launch.kubernetes.rules.state import newest
from torchft_x.timing import POLL

_HEARD = 150.0  # longest wait, in seconds, for a lighthouse to read the list: kubelets sync every minute or so


def end(job: str) -> str:
    """Remove the job's objects and return a sentence about it. Raise `ClusterError` or `ConfigError`."""
    handle = parse(job)
    if not jobs.cancel(Cluster(handle.context, handle.namespace), handle.app):
        raise ConfigError(f"there is no job {handle.app}.")
    return f"The job {handle.app} is removed."


def resize(job: str, wanted: int) -> tuple[str, int]:
    """Change the number of groups. Return the app id and the former number. Raise `ClusterError` or `ConfigError`."""
    handle = parse(job)
    return handle.app, resize_job(Cluster(handle.context, handle.namespace), handle.app, wanted).before


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


def resize_job(cluster: Cluster, app: str, wanted: int) -> scale.Change:
    """Change the job to `wanted` groups and return the change. The call may be repeated after a failure.

    Groups whose pods are deleted leave at a step boundary. Raise `ConfigError` or `ClusterError`.
    """
    found = cluster.list("Job", jobs.of(app))
    change = scale.change(app, found, wanted)
    try:
        cluster.patch("ConfigMap", app, {"data": {scale.FILE: scale.text(change.groups)}})
    except ClusterError as e:
        if e.status == 404:
            raise ConfigError(
                f"the ConfigMap {app} is gone, in which the lighthouse reads which groups there are."
            ) from None
        raise
    with jobs.if_there(BUDGET):
        cluster.patch(BUDGET, app, {"spec": {"minAvailable": change.pods - 1}})
    _hasten(cluster, app, change)
    _wait(cluster, app, change)
    for body in change.new:
        cluster.create(body)
    for name in change.going:
        cluster.delete("Job", name)
    return change


def _hasten(cluster: Cluster, app: str, change: scale.Change) -> None:
    """Annotate the lighthouse's pod, so that its kubelet updates the mounted ConfigMap at once, not within a minute or so."""
    selector = f"{jobs.of(app)},{names.ROLE}={LIGHTHOUSE}"
    pod = newest(cluster.list("Pod", selector))
    if pod is not None:
        note = {names.GROUPS: str(len(change.groups))}
        try:
            cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": note}})
        except ClusterError as e:
            if e.status != 404:  # 404: a pod that replaces it reads the new list
                raise


def _wait(cluster: Cluster, app: str, change: scale.Change) -> None:
    """Wait until the lighthouse knows, and so accepts, the groups. Raise `ClusterError` after `_HEARD` seconds."""
    deadline = time.monotonic() + _HEARD
    while True:
        trouble = _trouble(cluster, app, change)
        if not trouble:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the lighthouse of {app} has not heard of the new number within {_HEARD:g} s ({trouble}); nothing was made "
                "or deleted. Give the command again."
            )
        time.sleep(POLL)


def _trouble(cluster: Cluster, app: str, change: scale.Change) -> str:
    """Return the reason why the lighthouse is not known to have the new list, or '' if it has it."""
    try:
        status, found = cluster.page(names.service(app), "/status.json")
    except ClusterError as e:
        if e.status == 403:
            raise
        return str(e).rstrip(".")
    if status != 200 or not isinstance(found, dict):
        return f"its page answers with {status}"
    wanted: Any = found.get("wanted")
    return "" if wanted == list(change.groups) else f"it has the groups {wanted}"
