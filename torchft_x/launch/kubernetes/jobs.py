"""Make, see, follow and end a job of a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.core.kubernetes import names, state
from torchft_x.core.kubernetes.objects import BUDGET, owned
from torchft_x.core.kubernetes.state import FAILED, SUCCEEDED, JobState, PartState
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.observe.events import BEGIN

Json = dict[str, Any]

_LOOK = 1.0  # seconds between looks at a part whose log has just ended, or that can't be watched
_JUST = 5.0  # seconds in which the cluster says of a pod that has ended whether its part is over
_WATCH = 30  # seconds that a change is waited for
_BACK = 10.0  # seconds that are read again where a connection has ended
_AWAY = 60.0  # seconds the API server may be away while a log is followed


def submit(cluster: Cluster, objects: Sequence[Json]) -> None:
    """All of them, or none: what was made is removed again if one is refused. Raises `ClusterError`."""
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
    """Do without a budget where there is none: a cluster older than 1.21 doesn't know it."""
    try:
        yield
    except ClusterError as e:
        if kind != BUDGET or e.status != 404:
            raise


def find(cluster: Cluster, app: str, why: bool = False) -> JobState | None:
    """None: there is no such job. `why`: with what the cluster warns of about parts that wait. Raises `ClusterError`."""
    selector = of(app)
    jobs = cluster.list("Job", selector)
    if not jobs:
        return None
    pods = cluster.list("Pod", selector)
    found = state.job_state(app, jobs, pods)
    return state.job_state(app, jobs, pods, cluster.warnings()) if why and found.waits else found


def every(cluster: Cluster) -> list[JobState]:
    """All jobs of the namespace, by name. Raises `ClusterError`."""
    selector = f"{names.MANAGED_BY}={names.OURS}"
    jobs, pods = cluster.list("Job", selector), cluster.list("Pod", selector)
    apps = sorted({_app(job) for job in jobs} - {""})
    return [
        state.job_state(app, [j for j in jobs if _app(j) == app], [p for p in pods if _app(p) == app]) for app in apps
    ]


@dataclass(frozen=True)
class Anchor:
    """The object that owns all others of a job, and is there until the job is removed."""

    kind: str
    name: str
    annotations: Json


def anchor(cluster: Cluster, app: str) -> Anchor | None:
    """None: there is no such job. Raises `ClusterError`."""
    for kind in ("Job", "Service"):
        for found in cluster.list(kind, of(app)):
            annotations = found["metadata"].get("annotations") or {}
            if names.MINIMUM in annotations:
                return Anchor(kind, found["metadata"]["name"], annotations)
    return None


def cancel(cluster: Cluster, app: str) -> bool:
    """Whether there was something to end. One delete: the cluster removes all that the anchor owns. Raises `ClusterError`."""
    found = anchor(cluster, app)
    return found is not None and cluster.delete(found.kind, found.name)


def lines(cluster: Cluster, app: str, part: PartState, follow: bool, since: float | None = None) -> Iterator[str]:
    """Of the newest pod of a part, with their ends; with `follow` of all that come after it, until the part is over.
    `since`: seconds ago. Raises `ClusterError`.
    """
    selector = _selector(app, part.role, part.replica)
    marks: dict[tuple[str, int], _Mark] = {}
    begin = None if since is None else time.time() - since
    lost = ended = 0.0  # when the API server was first away, and when a pod's log was at its end last
    while True:
        try:
            over = not follow or _over(find(cluster, app), part)
            pods, version = cluster.list_at("Pod", selector)
            pod = state.newest(pods)
            if pod is not None and state.has_begun(pod):
                mark = marks.setdefault(state.life(pod), _Mark(since=begin))
                if not mark.done:
                    last = not state.is_running(pod)
                    yield from _log(cluster, pod, part, follow, mark)
                    mark.done, ended = last, time.monotonic()
            if over:
                return
            lost = 0.0
            if time.monotonic() - ended > _JUST and _has_changed(cluster, selector, version):
                continue
        except ClusterError as e:
            lost = lost or time.monotonic()
            if not follow or 400 < e.status < 500 or time.monotonic() - lost > _AWAY:
                raise
        time.sleep(_LOOK)


def _has_changed(cluster: Cluster, selector: str, version: str) -> bool:
    """Wait for a change of these pods. False: there was none, or whoever asks may not watch."""
    try:
        return cluster.wait_for_change("Pod", selector, version, _WATCH)
    except ClusterError as e:
        if e.status not in (403, 410):  # 410: the version is too old
            raise
        return False


def written(cluster: Cluster, pod: Json) -> Iterator[str]:
    """All that a pod has printed by now, with their ends: first what the container before the present one has. Raises
    `ClusterError`.
    """
    container = names.label(pod["metadata"]["labels"][names.ROLE])
    for previous in (True, False):
        if state.has_begun(pod) if not previous else state.life(pod)[1] > 0:
            try:
                yield from _split(cluster.log(pod["metadata"]["name"], container, previous=previous))
            except ClusterError as e:
                if e.status not in (400, 404):  # it was removed
                    raise


@dataclass
class _Mark:
    """How far one life's log has been read."""

    since: float | None  # time
    last: str = ""  # time of the last line, as the cluster writes it
    done: bool = False


def _log(cluster: Cluster, pod: Mapping[str, Any], part: PartState, follow: bool, mark: _Mark) -> Iterator[str]:
    """The lines that were not read before; a connection may end at any of them."""
    options: dict[str, Any] = {"follow": follow, "timestamps": True}
    if mark.since is not None:
        options["since_seconds"] = max(int(time.time() - mark.since) + 1, 1)
    before = mark.last
    for line in _split(cluster.log(pod["metadata"]["name"], names.label(part.role), **options)):
        when, _, text = line.partition(" ")
        if when > before:
            mark.last, mark.since = when, time.time() - _BACK
            if not text.startswith(BEGIN):  # programs read these
                yield text


def _over(found: JobState | None, part: PartState) -> bool:
    if found is None or found.state in (SUCCEEDED, FAILED):
        return True
    now = next((p for p in found.parts if (p.role, p.replica) == (part.role, part.replica)), None)
    return now is None or now.state in (SUCCEEDED, FAILED)


def pods_of(cluster: Cluster, app: str, role: str, replica: int) -> list[Json]:
    """All that are left of a replica, the newest last. Raises `ClusterError`."""
    found = cluster.list("Pod", _selector(app, role, replica))
    return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))


def _selector(app: str, role: str, replica: int) -> str:
    return f"{names.INSTANCE}={app},{names.ROLE}={names.label(role)},{names.REPLICA}={replica}"


def _split(chunks: Iterator[bytes]) -> Iterator[str]:
    partial = b""
    for chunk in chunks:
        *whole, partial = (partial + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") + "\n" for line in whole)
    if partial:
        yield partial.decode("utf-8", "replace") + "\n"


def of(app: str) -> str:
    """Selects what belongs to a job."""
    return f"{names.INSTANCE}={app},{names.MANAGED_BY}={names.OURS}"


def _app(found: Json) -> str:
    return str((found["metadata"].get("labels") or {}).get(names.INSTANCE, ""))
