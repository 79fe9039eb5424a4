"""Submits, finds, follows and cancels jobs of a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.launch.job.states import FAILED, SUCCEEDED
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.kubernetes.rules import names, state
from torchft_x.launch.kubernetes.rules.objects import BUDGET, owned
from torchft_x.launch.kubernetes.rules.state import JobState, PartState
from torchft_x.observe.events import BEGIN
from torchft_x.timing import POLL_SLOW

Json = dict[str, Any]

_JUST = 5.0  # seconds after a pod's end within which the cluster decides whether its part is over
_WATCH = 30  # longest wait for a change, in seconds
_BACK = 10.0  # seconds of log that are read again after the end of a connection
_AWAY = 60.0  # seconds for which the API server may be unreachable while a log is followed


def submit(cluster: Cluster, objects: Sequence[Json]) -> None:
    """Create all objects, or delete the created ones again if one is refused. Raise `ClusterError`."""
    anchor = cluster.create(objects[0])
    try:
        for body in owned(objects, anchor):
            with if_there(body["kind"]):
                cluster.create(body)
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(ClusterError):
            cluster.delete(objects[0]["kind"], objects[0]["metadata"]["name"])
        raise


@contextlib.contextmanager
def if_there(kind: str) -> Iterator[None]:
    """Ignore a missing disruption budget: clusters older than 1.21 don't have that kind."""
    try:
        yield
    except ClusterError as e:
        if kind != BUDGET or e.status != 404:
            raise


def find(cluster: Cluster, app: str, why: bool = False) -> JobState | None:
    """Return the job's state, or None if there is no such job. `why` adds the cluster's warnings about waiting parts.

    Raise `ClusterError`.
    """
    selector = of(app)
    jobs = cluster.list("Job", selector)
    if not jobs:
        return None
    pods = cluster.list("Pod", selector)
    found = state.job_state(app, jobs, pods)
    return state.job_state(app, jobs, pods, cluster.warnings()) if why and found.waits else found


def every(cluster: Cluster) -> list[JobState]:
    """Return the states of all jobs of the namespace, by name. Raise `ClusterError`."""
    selector = f"{names.MANAGED_BY}={names.OURS}"
    jobs, pods = cluster.list("Job", selector), cluster.list("Pod", selector)
    by_app: dict[str, tuple[list[Json], list[Json]]] = {}
    for at, found in enumerate((jobs, pods)):
        for one in found:
            by_app.setdefault(names.label_of(one, names.INSTANCE), ([], []))[at].append(one)
    return [state.job_state(app, *found) for app, found in sorted(by_app.items()) if app and found[0]]


def anchor(cluster: Cluster, app: str) -> tuple[str, Json] | None:
    """Return the object that owns all others of a job until the job is deleted, as its kind and metadata.

    Return None if there is no such job. Raise `ClusterError`.
    """
    for kind in ("Job", "Service"):
        for found in cluster.list(kind, of(app)):
            if names.MINIMUM in (found["metadata"].get("annotations") or {}):
                return kind, found["metadata"]
    return None


def cancel(cluster: Cluster, app: str) -> bool:
    """Delete the job's anchor, with which the cluster deletes all other objects. Return whether there was such a job.

    Raise `ClusterError`.
    """
    found = anchor(cluster, app)
    return found is not None and cluster.delete(found[0], found[1]["name"])


def lines(cluster: Cluster, app: str, part: PartState, follow: bool, since: float | None = None) -> Iterator[str]:
    """Yield the lines, with ends, of a part's newest pod; with `follow` also of later ones, until the part is over.

    `since` is in seconds before now. Raise `ClusterError`.
    """
    selector = replica(app, part.role, part.replica)
    marks: dict[tuple[str, int], _Mark] = {}
    begin = None if since is None else time.time() - since
    # Monotonic times: the API server became unreachable; a pod's log last ended. 0 if neither.
    lost = ended = 0.0
    while True:
        try:
            over = not follow or _over(find(cluster, app), part)
            pods, version = cluster.list_at("Pod", selector)
            pod = state.newest(pods)
            if pod is not None and state.has_begun(pod):
                mark = marks.setdefault(state.container_attempt(pod), _Mark(since=begin))
                if not mark.done:
                    last = not state.is_running(pod)
                    yield from _log(cluster, pod, part, follow, mark)
                    mark.done, ended = last, time.monotonic()
            if over:
                return
            lost = 0.0
            if time.monotonic() - ended > _JUST and cluster.wait_for_change("Pod", selector, version, _WATCH):
                continue
        except ClusterError as e:
            lost = lost or time.monotonic()
            if not follow or 400 < e.status < 500 or time.monotonic() - lost > _AWAY:
                raise
        time.sleep(POLL_SLOW)


def written(cluster: Cluster, pod: Json) -> Iterator[str]:
    """Yield all lines that a pod has printed so far, with their ends, beginning with the previous container's.

    Raise `ClusterError`.
    """
    container = names.label(pod["metadata"]["labels"][names.ROLE])
    for previous in (True, False):
        if state.has_begun(pod) if not previous else state.container_attempt(pod)[1] > 0:
            try:
                yield from _split(cluster.log(pod["metadata"]["name"], container, previous=previous))
            except ClusterError as e:
                if e.status not in (400, 404):  # 400, 404: the container or pod was deleted
                    raise


@dataclass
class _Mark:
    """Position up to which the log of one attempt of a container has been read."""

    since: float | None  # Unix seconds from which to read
    last: str = ""  # timestamp of the last line, in the cluster's format
    done: bool = False


def _log(cluster: Cluster, pod: Mapping[str, Any], part: PartState, follow: bool, mark: _Mark) -> Iterator[str]:
    """Yield the lines after the mark, and move the mark. The connection may end at any line."""
    options: dict[str, Any] = {"follow": follow, "timestamps": True}
    if mark.since is not None:
        options["since_seconds"] = max(int(time.time() - mark.since) + 1, 1)
    before = mark.last
    for line in _split(cluster.log(pod["metadata"]["name"], names.label(part.role), **options)):
        when, _, text = line.partition(" ")
        if when > before:
            mark.last, mark.since = when, time.time() - _BACK
            if not text.startswith(BEGIN):  # events are for programs
                yield text


def _over(found: JobState | None, part: PartState) -> bool:
    if found is None or found.state in (SUCCEEDED, FAILED):
        return True
    now = next((p for p in found.parts if (p.role, p.replica) == (part.role, part.replica)), None)
    return now is None or now.state in (SUCCEEDED, FAILED)


def replica(app: str, role: str, number: int) -> str:
    """Return the label selector for a replica's pods."""
    return f"{names.INSTANCE}={app},{names.ROLE}={names.label(role)},{names.REPLICA}={number}"


def _split(chunks: Iterator[bytes]) -> Iterator[str]:
    partial = b""
    for chunk in chunks:
        *whole, partial = (partial + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") + "\n" for line in whole)
    if partial:
        yield partial.decode("utf-8", "replace") + "\n"


def of(app: str) -> str:
    """Return the label selector for a job's objects."""
    return f"{names.INSTANCE}={app},{names.MANAGED_BY}={names.OURS}"
