"""States of a job and of its parts, from its Jobs and pods as the API server returns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.launch.job.states import FAILED, HEALTH_FAILED, PENDING, RUNNING, SUCCEEDED
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER

Json = Mapping[str, Any]

_FAILED = "failed: "  # prefix of the last words of a part that has failed


@dataclass(frozen=True)
class PartState:
    """State of one replica of a role."""

    role: str
    replica: int
    group: str
    state: str
    restarts: int
    """Number of its containers and pods after the first, without those of deleted pods."""
    reason: str
    node: str  # that of the newest pod


@dataclass(frozen=True)
class JobState:
    app: str
    state: str
    reason: str
    parts: tuple[PartState, ...]
    min_replicas: int
    waits: list[str]
    """Parts that do not run, each with the reason."""

    @property
    def unhealthy(self) -> dict[str, dict[str, str]]:
        """Groups that were given up because the health command failed: by group id, the nodes and the reasons."""
        found: dict[str, dict[str, str]] = {}
        for part in self.parts:
            if part.state == FAILED and part.reason.startswith(HEALTH_FAILED):
                found.setdefault(part.group, {})[part.node] = part.reason
        return found

    def advice(self, handle: str) -> str:
        """Return the command, in a sentence, that starts the `unhealthy` groups on other nodes; '' if there are none."""
        if self.state in (SUCCEEDED, FAILED) or not self.unhealthy:
            return ""
        groups = len({part.group for part in self.parts if part.role == TRAINER})
        which = ", ".join(f"group {g} on another node than {', '.join(nodes)}" for g, nodes in self.unhealthy.items())
        return f"`torchft_x scale --replicas {groups} {handle}` starts {which}."


def newest(pods: Iterable[Json]) -> Json | None:
    """Return the pod that was created last, preferring pods that are not being deleted, or None if there are no pods."""
    return max(
        pods,
        key=lambda p: (not _meta(p).get("deletionTimestamp"), str(_meta(p).get("creationTimestamp"))),
        default=None,
    )


def container_attempt(pod: Json) -> tuple[str, int]:
    """Return an identifier of the container's present attempt: the pod's uid and the number of restarts."""
    return str(_meta(pod).get("uid")), int(_container(pod).get("restartCount", 0))


def has_begun(pod: Json) -> bool:
    """Return whether the pod's container has begun, so that it has a log."""
    status = _container(pod)
    return bool({"running", "terminated"} & {*status.get("state", {})}) or bool(status.get("lastState"))


def is_running(pod: Json) -> bool:
    return "running" in _container(pod).get("state", {})


def job_state(app: str, jobs: Sequence[Json], pods: Sequence[Json], events: Sequence[Json] = ()) -> JobState:
    """Return the job's state from all its Jobs and pods. `events` has the cluster's warnings, reported for waiting parts."""
    of_parts: dict[tuple[str, int], list[Json]] = {}
    for pod in pods:
        of_parts.setdefault(_which(pod), []).append(pod)
    parts = [_part(job, of_parts.get(_which(job), []), events) for job in sorted(jobs, key=_which)]
    minimum = next((int(m) for j in jobs if (m := (_meta(j).get("annotations") or {}).get(names.MINIMUM))), 1)
    waits = [f"{p.role}/{p.replica}: {p.reason}" for p in parts if p.state == PENDING and p.reason]
    state, reason = _end_of(parts, minimum)
    if not state:
        running = any(p.state == RUNNING for p in [p for p in parts if p.role == TRAINER] or parts)
        state, reason = RUNNING if running else PENDING, waits[0] if waits else ""
    return JobState(app, state, reason, tuple(parts), minimum, waits)


def _which(found: Json) -> tuple[str, int]:
    """Return the role and the replica of a Job or pod."""
    return names.label_of(found, names.ROLE), int(names.label_of(found, names.REPLICA) or 0)


def _end_of(parts: Sequence[PartState], minimum: int) -> tuple[str, str]:
    """Return the state of an ended job and the reason, or two empty strings for one that has not ended."""
    lighthouse = next((p for p in parts if p.role == LIGHTHOUSE), None)
    trainers = [p for p in parts if p.role == TRAINER]
    if lighthouse is not None and lighthouse.state in (SUCCEEDED, FAILED):  # its end is the job's
        return lighthouse.state, lighthouse.reason
    if lighthouse is None and trainers:
        over = {p.group: p.state for p in trainers}
        for part in trainers:  # one failed node fails its group
            over[part.group] = FAILED if FAILED in (part.state, over[part.group]) else over[part.group]
        if all(p.state in (SUCCEEDED, FAILED) for p in trainers):
            good = sum(state == SUCCEEDED for state in over.values())
            first = next((p.reason for p in trainers if p.state == FAILED), "")
            return (SUCCEEDED, "") if good >= minimum else (FAILED, first)
    if lighthouse is None and not trainers and parts:
        if any(p.state == FAILED for p in parts):
            return FAILED, next(p.reason for p in parts if p.state == FAILED)
        if all(p.state == SUCCEEDED for p in parts):
            return SUCCEEDED, ""
    return "", ""


def _part(job: Json, pods: Sequence[Json], events: Sequence[Json]) -> PartState:
    pod = newest(pods)
    state, reason = _ended(job, pods)
    if not state:
        state, reason = (PENDING, _no_pod(job)) if pod is None else _of_pod(pod)
        warned = _warned("Job", job, events) if pod is None else _warned("Pod", pod, events)
        if state == PENDING and warned not in reason:
            reason = f"{reason}; the cluster warns: {warned}"
    before = max(len(pods), int((job.get("status") or {}).get("failed") or 0) + (pod is not None)) - 1
    role, replica = _which(job)
    return PartState(
        role=role,
        replica=replica,
        group=names.label_of(job, names.GROUP),
        state=state,
        restarts=max(before, 0) + sum(int(_container(p).get("restartCount", 0)) for p in pods),
        reason=reason,
        node=str((pod.get("spec") or {}).get("nodeName") or "") if pod else "",
    )


def _ended(job: Json, pods: Sequence[Json]) -> tuple[str, str]:
    """Return the state of an ended Job and the reason, or two empty strings for one that has not ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Failed":
            return FAILED, str(condition.get("message") or condition.get("reason") or "Kubernetes says no reason.")
        if condition.get("type") == "Complete":
            good = [p for p in pods if (p.get("status") or {}).get("phase") == "Succeeded"]
            ended = _container(newest(good) or {}).get("state", {}).get("terminated") or {}
            words = str(ended.get("message") or "").strip()
            return (FAILED, words.removeprefix(_FAILED)) if words.startswith(_FAILED) else (SUCCEEDED, words)
    return "", ""


def _no_pod(job: Json) -> str:
    queue = names.label_of(job, names.QUEUE)
    suspended = f"it waits in the queue {queue}" if queue else "its Job is suspended"
    return suspended if (job.get("spec") or {}).get("suspend") else "its pod is not there yet"


def _warned(kind: str, thing: Json, events: Sequence[Json]) -> str:
    """Return the cluster's last warning about this object, or ''. Skip warnings that the object's own status says better."""
    known = {"kind": kind, "name": _meta(thing).get("name")}.items()
    found = [e for e in events if known <= e.get("involvedObject", {}).items() and e.get("reason") != "BackOff"]
    found = [e for e in found if not str(e.get("message")).startswith("Error: ")]
    newest = max(found, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime")), default={})
    return " ".join(str(newest.get("message") or "").split())


def _of_pod(pod: Json) -> tuple[str, str]:
    status = pod.get("status") or {}
    if _meta(pod).get("deletionTimestamp"):
        return PENDING, "its pod is being deleted"
    container = _container(pod)
    if "running" in container.get("state", {}):
        if container.get("ready") is False:  # by its readiness probe
            return PENDING, ", ".join(filter(None, ["its container runs and is not ready", _last_end(container)]))
        return RUNNING, _last_end(container)
    waiting = container.get("state", {}).get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
        said = str(waiting.get("message") or "").strip()
        return PENDING, ": ".join(filter(None, [str(waiting["reason"]), said, _last_end(container)]))
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return PENDING, f"no node takes it: {condition.get('message') or condition.get('reason')}"
    if status.get("phase") == "Failed":
        return PENDING, f"its pod failed ({status.get('reason') or _last_end(container) or 'no reason is given'})"
    return PENDING, f"its container has not begun since {_meta(pod).get('creationTimestamp')}"


def _last_end(container: Json) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get("terminated")
    return f"last: {ended.get('reason') or 'it ended'} ({ended.get('exitCode')})" if ended else ""


def _container(pod: Json) -> Json:
    found: Sequence[Json] = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return next((c for c in found if c.get("name") == names.label_of(pod, names.ROLE)), found[0])


def _meta(found: Json) -> Json:
    value: Json = found.get("metadata") or {}
    return value
