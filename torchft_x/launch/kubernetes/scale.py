"""Changes the number of groups of a running job: informs its lighthouse first, then creates or deletes Jobs."""

from __future__ import annotations

import time
from typing import Any

from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.rules import names, scale
from torchft_x.launch.kubernetes.rules.objects import BUDGET
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE
from torchft_x.launch.kubernetes.rules.state import newest

_HEARD = 150.0  # longest wait, in seconds, for a lighthouse to read the list: kubelets sync every minute or so
_LOOK = 0.3  # seconds between polls


def resize(cluster: Cluster, app: str, wanted: int) -> scale.Change:
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
        time.sleep(_LOOK)


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
