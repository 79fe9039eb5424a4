"""The pod of one replica."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from torchft_x.core.kubernetes import names
from torchft_x.core.kubernetes.merge import merge
from torchft_x.core.kubernetes.parts import LIGHTHOUSE, TRAINER, Mount, Part, Wishes

Json = dict[str, Any]

POD_IP = "POD_IP"  # variable
REPLICA = "TORCHX_REPLICA"  # variable: the number of a trainer's replica, which its label says
SLOT = "\0replica\0"  # stands for that number in a part's words: no argument and no variable can hold such characters
PAGE_BESIDE = 10  # the page's port is so far above the lighthouse's
TOKEN_KEY = "token"  # in the job's Secret
_SHM = "/dev/shm"
_LAST_WORDS = "/dev/termination-log"
_ALIVE = f"{_SHM}/torchft_x.alive"  # in memory: no disk can hold its time up
_LOOK = (  # whoever renews it is frozen if it is older than 30 s
    f"import os, sys, time; at = '{_ALIVE}'; new = os.path.exists(at) and time.time() - os.stat(at).st_mtime < 30; "
    "sys.exit(None if new else 'the supervisor is frozen, or has not begun')"
)
_SHM_LIMIT = "8Gi"  # where the memory has none
_RUN_LIMIT = "32Gi"  # of events and logs, with room to spare
_NO_CAPABILITIES: Json = {"capabilities": {"drop": ["ALL"]}}


def literal(text: str) -> str:
    """As Kubernetes hands it on unchanged: it would replace ``$(NAME)``. But the slot is what the pod's label says."""
    return text.replace("$", "$$").replace(SLOT, f"$({REPLICA})")


def is_shared(path: str, mounts: tuple[Mount, ...]) -> bool:
    """Whether the path lies on something that can be written and that other pods may have mounted, too."""
    return any(m.kind != "device" and not m.read_only and PurePosixPath(path).is_relative_to(m.target) for m in mounts)


def labels(app: str, part: Part | None = None) -> dict[str, str]:
    """Of all that belongs to a job, or to one of its parts."""
    found = {names.NAME: names.OURS, names.MANAGED_BY: names.OURS, names.INSTANCE: app}
    if part is not None:
        found |= {names.ROLE: names.label(part.role), names.REPLICA: str(part.replica)}
        found |= {names.GROUP: part.group} if part.group else {}
    return found


def template(app: str, part: Part, wishes: Wishes, more_env: list[Json], scratch: str) -> Json:
    """`more_env`: variables that win over the part's own. `scratch`: a directory that lives as long as the pod, or empty."""
    metadata: Json = {"labels": labels(app, part)}
    if wishes.annotations:
        metadata["annotations"] = dict(wishes.annotations)
    spec = _spec(app, part, wishes, more_env, scratch)
    return {"metadata": metadata, "spec": merge(spec, _of_role(wishes.overlay, names.label(part.role)))}


def _of_role(overlay: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Without what it says of other roles' containers; one with an image is a further container of every pod."""
    if not isinstance(overlay.get("containers"), list):
        return overlay
    containers = [
        c for c in overlay["containers"] if isinstance(c, Mapping) and (c.get("name") == role or "image" in c)
    ]
    return {**overlay, "containers": containers}


def _spec(app: str, part: Part, wishes: Wishes, more_env: list[Json], scratch: str) -> Json:
    volumes, mounts = _volumes(part, scratch)
    if part.config:
        volumes.append({"name": "groups", "configMap": {"name": app}})
        mounts.append({"name": "groups", "mountPath": part.config, "readOnly": True})
    spec: Json = {
        "restartPolicy": "OnFailure" if part.kind else "Never",
        "terminationGracePeriodSeconds": wishes.grace,
        "hostname": names.part(app, part.role, part.replica),
        "subdomain": app,
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(wishes.service_account),
        "securityContext": {**_user(wishes.user), "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [_tolerated(trouble, wishes.toleration) for trouble in ("not-ready", "unreachable")],
        "containers": [_container(part, wishes, more_env, mounts)],
        "volumes": volumes,
    }
    if wishes.spread:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": wishes.spread,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {names.INSTANCE: app, names.ROLE: names.label(part.role)}},
            }
        ]
    given: Mapping[str, Any] = {
        "serviceAccountName": wishes.service_account,
        "priorityClassName": wishes.priority_class,
        "nodeSelector": dict(wishes.node_selector),
        "imagePullSecrets": [{"name": name} for name in wishes.pull_secrets],
    }
    return {**spec, **{name: value for name, value in given.items() if value}}


def _container(part: Part, wishes: Wishes, more_env: list[Json], mounts: list[Json]) -> Json:
    overridden = {e["name"] for e in more_env}
    own = [{"name": n, "value": literal(v)} for n, v in part.env.items() if n not in overridden]
    found = [field(POD_IP, "status.podIP")]
    if part.kind == TRAINER:  # so that all groups have the same pod but for its labels and host name
        found.append(field(REPLICA, f"metadata.labels['{names.REPLICA}']"))
    container: Json = {
        "name": names.label(part.role),
        "image": part.image,
        "command": [literal(word) for word in part.command],
        "env": [*found, *own, *more_env],
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, **({} if wishes.user == 0 else _NO_CAPABILITIES)},
        "terminationMessagePath": _LAST_WORDS,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if part.limits:
        container["resources"] = {"limits": dict(part.limits), "requests": dict(part.limits)}
    if wishes.env_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in wishes.env_secrets]
    if part.ports:
        container["ports"] = [{"containerPort": port} for port in part.ports]
    if part.kind:
        container |= _probes(part.command[0], wishes.start)
    if part.kind == LIGHTHOUSE and part.ports:
        probe = {"path": "/readyz", "port": part.ports[0] + PAGE_BESIDE}
        container["readinessProbe"] = {"httpGet": probe, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 2}
    return container


def _probes(python: str, start: int) -> Json:
    """Start a container again whose supervisor is frozen, or has not begun within `start` seconds."""

    def probe(seconds: int, failures: int) -> Json:  # each time anew: YAML would write the second one as a reference
        words = {"exec": {"command": [python, "-ISc", _LOOK]}, "timeoutSeconds": 10}
        return {**words, "periodSeconds": seconds, "failureThreshold": failures}

    return {"startupProbe": probe(1, start), "livenessProbe": probe(10, 3)}


def field(name: str, path: str) -> Json:
    """A variable that Kubernetes fills in with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def files(last_words: str, alive: str) -> list[Json]:
    """The variables of these names: where what is written stays in the pod's status, and whose time the probes look at."""
    return [{"name": last_words, "value": _LAST_WORDS}, {"name": alive, "value": _ALIVE}]


def _user(user: int | None) -> Json:
    """As PodSecurity's `restricted` asks for it, but for root."""
    return ({} if user == 0 else {"runAsNonRoot": True}) | ({} if user is None else {"runAsUser": user})


def _tolerated(trouble: str, seconds: int) -> Json:
    key = f"node.kubernetes.io/{trouble}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


def _volumes(part: Part, scratch: str) -> tuple[list[Json], list[Json]]:
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
    if scratch:
        volumes.append({"name": "run", "emptyDir": {"sizeLimit": _RUN_LIMIT}})
        mounts.append({"name": "run", "mountPath": scratch})
    return volumes, mounts
