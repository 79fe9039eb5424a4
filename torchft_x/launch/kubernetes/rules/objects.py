"""Renders all objects of a job. The first is the anchor: it owns the others, so Kubernetes deletes them with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchft_x import env
from torchft_x.launch.kubernetes.rules import names, scale
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER, WITHOUT_END, Part, PodSettings
from torchft_x.launch.kubernetes.rules.pod import PAGE_BESIDE, TOKEN_KEY, labels, template

Json = dict[str, Any]

BUDGET = "PodDisruptionBudget"


def render(app: str, parts: Sequence[Part], settings: PodSettings, token: str | None, minimum: int) -> list[Json]:
    """Return the job's objects in the order in which they must be created.

    `token` is the run's, None if it has none. `minimum` is the number of groups that the job needs (min_replicas).
    """
    lighthouse = next((part for part in parts if part.kind == LIGHTHOUSE and part.ports), None)
    jobs = [_job(app, part, settings, alone=lighthouse is None) for part in parts]
    # A headless Service gives every pod a name in the cluster's DNS, whether it is ready or not.
    everyone = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.INSTANCE: app}}
    headless = _object("Service", "v1", app, app, spec=everyone)
    if lighthouse is None:
        objects = [headless]
    else:
        objects = [jobs.pop(parts.index(lighthouse)), headless, _service(app, lighthouse)]
        if settings.network_policy:
            objects += _policies(app, lighthouse)
    if lighthouse is not None and lighthouse.config:
        groups = dict.fromkeys(part.group for part in parts if part.group)
        objects.insert(1, _object("ConfigMap", "v1", app, app, data=scale.data(groups, {})))
    if token is not None:
        objects.insert(1, _object("Secret", "v1", app, app, type="Opaque", stringData={TOKEN_KEY: token}))
    trainers = sum(part.kind == TRAINER for part in parts)
    objects += [_budget(app, trainers)] if trainers else []
    objects += jobs
    objects[0]["metadata"]["annotations"] = {names.MINIMUM: str(minimum)}
    return objects


def owned(objects: Sequence[Json], anchor: Json) -> list[Json]:
    """Return the objects after the first, with the anchor as their owner. `anchor` is the first as the cluster created it."""
    metadata = anchor["metadata"]
    owner = {"apiVersion": objects[0]["apiVersion"], "kind": objects[0]["kind"]}
    owner |= {"name": metadata["name"], "uid": metadata["uid"]}
    return [{**o, "metadata": {**o["metadata"], "ownerReferences": [owner]}} for o in objects[1:]]


def _object(kind: str, version: str, name: str, app: str, part: Part | None = None, **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels(app, part)}, **fields}


def _job(app: str, part: Part, settings: PodSettings, *, alone: bool) -> Json:
    spec: Json = {
        "backoffLimit": WITHOUT_END if part.kind else part.retries,
        "template": template(app, part, settings),
    }
    if settings.ttl is not None and (alone or part.kind == LIGHTHOUSE):  # the lighthouse's Job owns all others
        spec["ttlSecondsAfterFinished"] = settings.ttl
    made = _object("Job", "batch/v1", names.part(app, part.role, part.replica), app, part, spec=spec)
    if settings.queue:
        made["metadata"]["labels"][names.QUEUE] = settings.queue
    return made


def _service(app: str, lighthouse: Part) -> Json:
    (port, *_) = lighthouse.ports
    page = names.TLS_PAGE if env.read_tls(lighthouse.env) else "page"
    ports = [{"name": "lighthouse", "port": port}, {"name": page, "port": port + PAGE_BESIDE}]
    selector = {names.INSTANCE: app, names.ROLE: names.label(lighthouse.role)}
    return _object("Service", "v1", names.service(app), app, spec={"selector": selector, "ports": ports})


def _budget(app: str, trainers: int) -> Json:
    """Return a budget by which drains evict one pod at a time. Jobs have no scale subresource, so a percentage would block all."""
    selector = {"matchLabels": {names.INSTANCE: app, names.ROLE: TRAINER}}
    return _object(BUDGET, "policy/v1", app, app, spec={"minAvailable": trainers - 1, "selector": selector})


def _policies(app: str, lighthouse: Part) -> list[Json]:
    """Return the policies: pods accept only each other, and the page, which needs a token for orders, the API server's proxy too."""

    def pods() -> Json:  # a new object per call: YAML would write a shared one as a reference
        return {"matchLabels": {names.INSTANCE: app}}

    def policy(name: str, selector: Json, ingress: Json) -> Json:
        spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [ingress]}
        return _object("NetworkPolicy", "networking.k8s.io/v1", name, app, spec=spec)

    served = pods()
    served["matchLabels"][names.ROLE] = names.label(lighthouse.role)
    page = {"ports": [{"port": lighthouse.ports[0] + PAGE_BESIDE}]}
    return [policy(app, pods(), {"from": [{"podSelector": pods()}]}), policy(f"{app}-page", served, page)]
