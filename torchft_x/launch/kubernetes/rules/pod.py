"""Renders the pod of one replica, with the user's overlay by the rules of Kubernetes' strategic merge patch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from torchft_x import env
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import LIGHTHOUSE, TRAINER, Mount, Part, PodSettings

Json = dict[str, Any]

POD_IP = "POD_IP"  # variable with the pod's address
REPLICA = "TORCHX_REPLICA"  # variable with the number of a trainer's replica, which Kubernetes fills in from its label
SLOT = "\0replica\0"  # placeholder for the replica's number: no argument and no variable can contain a NUL character
PAGE_BESIDE = 10  # offset of the page's port from the lighthouse's
TOKEN_KEY = "token"  # key of the run's token in the job's Secret
_SHM = "/dev/shm"
LAST_WORDS = "/dev/termination-log"  # text in this file is kept in the pod's status
ALIVE = f"{_SHM}/torchft_x.alive"  # in memory, so that no slow disk delays its renewal
_LOOK = (  # the supervisor renews the file; it is frozen if the file is older than 30 s
    f"import os, sys, time; at = '{ALIVE}'; new = os.path.exists(at) and time.time() - os.stat(at).st_mtime < 30; "
    "sys.exit(None if new else 'the supervisor is frozen, or has not begun')"
)
_SHM_LIMIT = "8Gi"  # for a part without a memory limit
_RUN_LIMIT = "32Gi"  # size of the directory for events and logs, which need far less
_EVICTED: Json = {"operator": "Exists", "effect": "NoExecute"}
_NO_CAPABILITIES: Json = {"capabilities": {"drop": ["ALL"]}}
# Field that identifies the elements of a list (patchMergeKey in Kubernetes' own types). Other lists are replaced.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def literal(text: str) -> str:
    """Return the text escaped, so that Kubernetes expands no ``$(NAME)`` in it, except `SLOT`: the replica's number."""
    return text.replace("$", "$$").replace(SLOT, f"$({REPLICA})")


def is_shared(path: str, mounts: tuple[Mount, ...]) -> bool:
    """Return whether the path lies on a writable mount that other pods may share."""
    return any(m.kind != "device" and not m.read_only and PurePosixPath(path).is_relative_to(m.target) for m in mounts)


def labels(app: str, part: Part | None = None) -> dict[str, str]:
    """Return the labels of a job's objects, or of one part's."""
    found = {names.NAME: names.OURS, names.MANAGED_BY: names.OURS, names.INSTANCE: app}
    if part is not None:
        found |= {names.ROLE: names.label(part.role), names.REPLICA: str(part.replica)}
        found |= {names.GROUP: part.group} if part.group else {}
    return found


def template(app: str, part: Part, settings: PodSettings) -> Json:
    metadata: Json = {"labels": labels(app, part)}
    if settings.annotations:
        metadata["annotations"] = dict(settings.annotations)
    spec = _spec(app, part, settings)
    return {"metadata": metadata, "spec": merge(spec, _of_role(settings.overlay, names.label(part.role)))}


def _of_role(overlay: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Return the overlay for one role: its own container, and those with an image, which are added to every pod."""
    if not isinstance(overlay.get("containers"), list):
        return overlay
    containers = [
        c for c in overlay["containers"] if isinstance(c, Mapping) and (c.get("name") == role or "image" in c)
    ]
    return {**overlay, "containers": containers}


def _spec(app: str, part: Part, settings: PodSettings) -> Json:
    volumes, mounts = _volumes(part)
    if part.config:
        volumes.append({"name": "groups", "configMap": {"name": app}})
        mounts.append({"name": "groups", "mountPath": part.config, "readOnly": True})
    spec: Json = {
        "restartPolicy": "OnFailure" if part.kind else "Never",
        "terminationGracePeriodSeconds": settings.grace,
        "hostname": names.part(app, part.role, part.replica),
        "subdomain": app,
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(settings.service_account),
        "securityContext": {  # as PodSecurity's `restricted` requires it unless the user is root
            **({} if settings.user == 0 else {"runAsNonRoot": True}),
            **({} if settings.user is None else {"runAsUser": settings.user}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {"key": f"node.kubernetes.io/{trouble}", **_EVICTED, "tolerationSeconds": settings.toleration}
            for trouble in ("not-ready", "unreachable")
        ],
        "containers": [_container(part, settings, mounts)],
        "volumes": volumes,
    }
    if settings.spread:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": settings.spread,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {names.INSTANCE: app, names.ROLE: names.label(part.role)}},
            }
        ]
    given: Mapping[str, Any] = {
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "nodeSelector": dict(settings.node_selector),
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
    }
    return {**spec, **{name: value for name, value in given.items() if value}}


def _container(part: Part, settings: PodSettings, mounts: list[Json]) -> Json:
    overridden = {e["name"] for e in part.more_env}
    own = [{"name": n, "value": literal(v)} for n, v in part.env.items() if n not in overridden]
    found = [field(POD_IP, "status.podIP")]
    if part.kind == TRAINER:  # so that all groups' pods are equal, except for labels and host name
        found.append(field(REPLICA, f"metadata.labels['{names.REPLICA}']"))
    container: Json = {
        "name": names.label(part.role),
        "image": part.image,
        "command": [literal(word) for word in part.command],
        "env": [*found, *own, *part.more_env],
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, **({} if settings.user == 0 else _NO_CAPABILITIES)},
        "terminationMessagePath": LAST_WORDS,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if part.limits:
        container["resources"] = {"limits": dict(part.limits), "requests": dict(part.limits)}
    if settings.env_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in settings.env_secrets]
    if part.ports:
        container["ports"] = [{"containerPort": port} for port in part.ports]
    if part.kind:
        container |= _probes(part.command[0], settings.start)
    if part.kind == LIGHTHOUSE and part.ports:
        probe: Json = {"path": "/readyz", "port": part.ports[0] + PAGE_BESIDE}
        probe |= {"scheme": "HTTPS"} if env.read_tls(part.env) else {}
        container["readinessProbe"] = {"httpGet": probe, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 2}
    return container


def _probes(python: str, start: int) -> Json:
    """Return the probes that restart a container whose supervisor is frozen, or has not begun within `start` seconds."""

    def probe(seconds: int, failures: int) -> Json:  # a new object: YAML would write a shared one as a reference
        words = {"exec": {"command": [python, "-ISc", _LOOK]}, "timeoutSeconds": 10}
        return {**words, "periodSeconds": seconds, "failureThreshold": failures}

    return {"startupProbe": probe(1, start), "livenessProbe": probe(10, 3)}


def field(name: str, path: str) -> Json:
    """Return a variable that Kubernetes fills in with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _volumes(part: Part) -> tuple[list[Json], list[Json]]:
    volumes: list[Json] = []
    mounts: list[Json] = []
    for i, mount in enumerate(part.mounts):
        name = f"mount-{i}"
        if mount.kind == "claim":
            claim = {"claimName": mount.source, "readOnly": mount.read_only}
            volumes.append({"name": name, "persistentVolumeClaim": claim})
        else:
            volumes.append({"name": name, "hostPath": {"path": mount.source}})
        mounts.append({"name": name, "mountPath": mount.target, "readOnly": mount.read_only})
    taken = {mount.target for mount in part.mounts}
    if _SHM not in taken:
        limit = part.limits.get("memory", _SHM_LIMIT)
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
        mounts.append({"name": "shm", "mountPath": _SHM})
    if part.scratch:
        volumes.append({"name": "run", "emptyDir": {"sizeLimit": _RUN_LIMIT}})
        mounts.append({"name": "run", "mountPath": part.scratch})
    return volumes, mounts


def merge(base: Any, over: Any, field: str = "") -> Any:
    """Return `base` with `over` merged in: mappings by name, known lists by their key; a None removes. Change neither."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = {**base, **{k: merge(base.get(k), v, k) for k, v in over.items()}}
        return {k: v for k, v in merged.items() if v is not None}
    key = _KEYS.get(field)
    if key and isinstance(base, list) and isinstance(over, list):
        return _lists(base, over, key)
    return over


def _lists(base: list[Any], over: list[Any], key: str) -> list[Any]:
    merged = list(base)
    for item in over:
        name = item.get(key) if isinstance(item, Mapping) else None
        at = next((i for i, b in enumerate(merged) if name is not None and b.get(key) == name), None)
        if isinstance(item, Mapping) and item.get("$patch") == "delete":
            merged = [b for i, b in enumerate(merged) if i != at]
        elif at is None:
            merged.append(item)
        elif "valueFrom" in item or "value" in item:  # a variable must not have both
            merged[at] = item
        else:
            merged[at] = merge(merged[at], item)
    return merged
