"""A group as one JobSet, which Kueue admits as a whole: made of its nodes' Jobs, and read as these Jobs.

Its controller makes the Jobs, which are the same as without it but for their names and its labels. So pods come back as
they do without it; only where a whole Job has failed, the controller makes all Jobs of that group again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchft_x.core.kubernetes import names
from torchft_x.core.kubernetes.parts import WITHOUT_END

Json = dict[str, Any]

KIND, VERSION = "JobSet", "jobset.x-k8s.io/v1alpha2"
_TTL = "ttlSecondsAfterFinished"
_ENDS = {"Completed": "Complete", "Failed": "Failed"}  # of a JobSet: what a Job calls it


def of_group(app: str, group: str, jobs: Sequence[Json], queue: str) -> Json:
    """`jobs`: of all its nodes, as they would be made without it. `queue`: Kueue's, or empty."""
    labels = {n: v for n, v in jobs[0]["metadata"]["labels"].items() if n not in (names.REPLICA, names.QUEUE)}
    role = labels[names.ROLE]
    spec: Json = {
        "failurePolicy": {"maxRestarts": WITHOUT_END},
        "successPolicy": {"operator": "All"},
        "network": {"enableDNSHostnames": False},  # the job's Service has all names
        "replicatedJobs": [_replicated(node, job) for node, job in enumerate(jobs)],
    }
    if _TTL in jobs[0]["spec"]:  # the Jobs go with their JobSet
        spec[_TTL] = jobs[0]["spec"][_TTL]
    labels |= {names.QUEUE: queue} if queue else {}
    metadata = {"name": names.part(app, role, int(group)), "labels": labels}
    return {"apiVersion": VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _replicated(node: int, job: Json) -> Json:
    """NonIndexed, since the host name of an indexed Job's pod is Kubernetes' own."""
    own = {n: v for n, v in job["metadata"]["labels"].items() if n != names.QUEUE}  # Kueue admits the whole
    spec = {"completionMode": "NonIndexed", **{n: v for n, v in job["spec"].items() if n != _TTL}}
    return {"name": names.node(node), "replicas": 1, "template": {"metadata": {"labels": own}, "spec": spec}}


def is_marked(found: Mapping[str, Any]) -> bool:
    """Whether an anchor or a Job says that its job has JobSets."""
    metadata = found["metadata"]
    return names.BACKEND in (metadata.get("annotations") or {}) or names.SET in (metadata.get("labels") or {})


def as_jobs(jobs: Iterable[Mapping[str, Any]], sets: Iterable[Mapping[str, Any]]) -> list[Json]:
    """The Jobs, with what only their JobSets know of them; and those that their JobSets have not made yet, in whose place
    their templates stand. What a JobSet made again counts as failed.
    """
    there: dict[tuple[str, str], Json] = {names.place_of(j): dict(j) for j in jobs}
    for found in sets:
        for replicated in found["spec"]["replicatedJobs"]:
            place = names.place_of(replicated["template"])
            there[place] = _known(there.get(place), found, replicated["template"])
    return list(there.values())


def _known(job: Json | None, found: Mapping[str, Any], template: Mapping[str, Any]) -> Json:
    planned = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"], "status": {}}
    known = planned if job is None else job
    queue = names.label_of(found, names.QUEUE)
    labels = {
        **known["metadata"]["labels"],
        **({names.QUEUE: queue} if queue else {}),
        names.SET: found["metadata"]["name"],
    }
    known["metadata"] = {**known["metadata"], "labels": labels}
    if found["spec"].get("suspend"):
        known["spec"] = {**known["spec"], "suspend": True}
    status, own = found.get("status") or {}, known.get("status") or {}
    known["status"] = {**own, "failed": int(own.get("failed") or 0) + int(status.get("restarts") or 0)}
    ended = [c for c in status.get("conditions") or [] if c.get("type") in _ENDS and c.get("status") == "True"]
    known["status"]["conditions"] = [*(own.get("conditions") or []), *({**c, "type": _ENDS[c["type"]]} for c in ended)]
    return known
