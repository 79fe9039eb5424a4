"""JobSets on the cluster of the tests: the definition that its project publishes, and a small stand-in for its controller.

The real controller is Go code whose modules aren't to be had here. This one does what the documentation says of what our
objects use, in a thread: it makes each JobSet's Jobs with its labels, makes all of them again once one has failed, as often as
`maxRestarts` says, and tells its state. Of a suspended JobSet it deletes the Jobs, which the real one suspends: the Jobs of
Kubernetes 1.20 can't be.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.api import Api, ApiError
from torchft_x.core.kubernetes.sets import VERSION

Json = dict[str, Any]

DEFINITION = Path(__file__).with_name("jobset_crd.json")
"""config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of the JobSet project (Apache-2.0), less its descriptions."""
_LABELS = "jobset.sigs.k8s.io"
_LOOK = 0.2  # seconds


def install(api: Api) -> None:
    """Define JobSets, unless that was done before; served on return, or soon after it."""
    try:
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json.loads(DEFINITION.read_text()))
    except ApiError as e:
        if e.status != 409:
            raise


@contextmanager
def controller(api: Api, namespace: str) -> Iterator[None]:
    """Of the JobSets of a namespace."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(_LOOK):
            try:
                for found in api.get(f"/apis/{VERSION}/namespaces/{namespace}/jobsets")["items"]:
                    if "deletionTimestamp" not in found["metadata"]:
                        _reconcile(api, found)
            except (OSError, ApiError) as e:  # somebody was faster: the next look sees it
                print(f"jobsets: asked again: {e!r}", flush=True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _reconcile(api: Api, found: Json) -> None:
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    jobs_at = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    status = found.get("status") or {}
    restarts = int(status.get("restarts") or 0)
    jobs = {j["metadata"]["name"]: j for j in api.get(jobs_at, labelSelector=f"{_LABELS}/jobset-name={name}")["items"]}
    if _ends(status, "Completed", "Failed"):
        return
    suspended = bool(found["spec"].get("suspend"))
    old = [
        j for j in jobs.values() if int(j["metadata"]["labels"][f"{_LABELS}/restart-attempt"]) < restarts or suspended
    ]
    for job in old:
        if "deletionTimestamp" not in job["metadata"]:
            api.delete(f"{jobs_at}/{job['metadata']['name']}", {"propagationPolicy": "Foreground"})
    if suspended:
        return
    present = [j for j in jobs.values() if j not in old]
    if any(_ends(j["status"], "Failed") for j in present):
        most = int((found["spec"].get("failurePolicy") or {}).get("maxRestarts") or 0)
        change = (
            {"restarts": restarts + 1}
            if restarts < most
            else _end("Failed", "jobset failed due to one or more job failures")
        )
        _tell(api, found, {"restarts": restarts, **change})
        return
    good = [j for j in present if _ends(j["status"], "Complete")]
    if len(good) == len(found["spec"]["replicatedJobs"]):
        _tell(api, found, {"restarts": restarts, **_end("Completed", "jobset completed successfully")})
        return
    for replicated in found["spec"]["replicatedJobs"]:
        wanted = _job(found, replicated, restarts)
        if wanted["metadata"]["name"] not in jobs:
            api.post(jobs_at, wanted)


def _job(found: Json, replicated: Json, restarts: int) -> Json:
    metadata, template = found["metadata"], replicated["template"]
    spec = json.loads(json.dumps(template["spec"]))
    own = {
        f"{_LABELS}/jobset-name": metadata["name"],
        f"{_LABELS}/replicatedjob-name": replicated["name"],
        f"{_LABELS}/job-index": "0",
        f"{_LABELS}/restart-attempt": str(restarts),
    }
    pod = spec["template"]["metadata"]
    pod["labels"] = {**pod["labels"], **own}
    owner = {"apiVersion": VERSION, "kind": "JobSet", "name": metadata["name"], "uid": metadata["uid"]}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    labels = {**template["metadata"]["labels"], **own}
    name = f"{metadata['name']}-{replicated['name']}-0"
    made = {"name": name, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec}


def _ends(status: Json, *kinds: str) -> bool:
    return any(c["type"] in kinds and c["status"] == "True" for c in status.get("conditions") or [])


def _end(kind: str, message: str) -> Json:
    condition = {"type": kind, "status": "True", "reason": "JobSet" + kind, "message": message}
    return {"conditions": [{**condition, "lastTransitionTime": "2026-11-26T00:00:00Z"}], "terminalState": kind}


def _tell(api: Api, found: Json, status: Json) -> None:
    at = f"/apis/{VERSION}/namespaces/{found['metadata']['namespace']}/jobsets/{found['metadata']['name']}"
    api.patch(f"{at}/status", {"status": status})
