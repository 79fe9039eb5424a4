"""Another number of groups for a job that runs: its lighthouse is told first, then Jobs are made or deleted."""

from __future__ import annotations

import time
from typing import Any

from torchft_x.core.kubernetes import names, scale
from torchft_x.core.kubernetes.objects import BUDGET
from torchft_x.core.kubernetes.parts import LIGHTHOUSE
from torchft_x.core.kubernetes.state import newest
from torchft_x.errors import ConfigError
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError

_HEARD = 150.0  # seconds until a lighthouse has read it: kubelets look after a minute or so, unless the pod changes
_LOOK = 0.3  # seconds between looks


def resize(cluster: Cluster, app: str, wanted: int) -> scale.Change:
    """May be done again where it has failed. Groups that go leave as any other whose pod is deleted: at a step boundary.

    Raises `ConfigError`, `ClusterError`.
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
    """A kubelet writes ConfigMaps anew when it looks after a pod: each minute or so, and at once when the pod has changed."""
    selector = f"{jobs.of(app)},{names.ROLE}={LIGHTHOUSE}"
    pod = newest(cluster.list("Pod", selector))
    if pod is not None:
        note = {names.GROUPS: str(len(change.groups))}
        try:
            cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": note}})
        except ClusterError as e:
            if e.status != 404:  # the one that replaces it reads the new number
                raise


def _wait(cluster: Cluster, app: str, change: scale.Change) -> None:
    """Until the lighthouse knows the groups: it would turn away one that it doesn't know."""
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
    """Why it isn't known yet that the lighthouse knows the groups; empty: it does."""
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
