"""Rules of the level `restricted` of Kubernetes' Pod Security Standards, for pods with no other fields than ours.

A field that no set here names is reported. Before it is added, look up whether the standard restricts its values.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

POD = {
    "affinity", "automountServiceAccountToken", "containers", "enableServiceLinks", "hostname", "restartPolicy",
    "securityContext", "subdomain", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
}  # fmt: skip
CONTAINER = {
    "command", "env", "image", "livenessProbe", "name", "ports", "readinessProbe", "resources", "securityContext",
    "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "volumeMounts",
}  # fmt: skip
CONTEXT = {"allowPrivilegeEscalation", "capabilities", "fsGroup", "runAsNonRoot", "runAsUser", "seccompProfile"}
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}


def violations(template: Json) -> list[str]:
    """Return the reasons for which admission would refuse a pod or its template, each as the field and its value."""
    spec = template["spec"]
    pod = spec.get("securityContext") or {}
    found = [f"pod: {field}" for field in spec.keys() - POD] + _of_context(pod, "pod")
    for volume in spec.get("volumes") or []:
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - VOLUMES - {"name"}]
    for container in spec["containers"]:
        found += _of_container(container, pod)
    return found


def _of_container(container: Json, pod: Json) -> list[str]:
    name, own = container["name"], container.get("securityContext") or {}
    found = [f"{name}: {field}" for field in container.keys() - CONTAINER] + _of_context(own, name)
    found += [f"{name}: host port {port['hostPort']}" for port in container.get("ports") or [] if "hostPort" in port]
    for probe in (value for field, value in container.items() if field.endswith("Probe")):
        found += [f"{name}: probes {probe['httpGet']['host']}"] if "host" in probe.get("httpGet", {}) else []
    demands = {
        "allowPrivilegeEscalation is not false": own.get("allowPrivilegeEscalation") is False,
        "runAsNonRoot is not true": own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
        "no seccomp profile": own.get("seccompProfile", pod.get("seccompProfile")) == {"type": "RuntimeDefault"},
        "does not drop ALL capabilities": own.get("capabilities") == {"drop": ["ALL"]},
    }
    return found + [f"{name}: {what}" for what, met in demands.items() if not met]


def _of_context(context: Json, where: str) -> list[str]:
    unknown = [f"{where}: {field}" for field in context.keys() - CONTEXT]
    return unknown + ([f"{where}: runAsUser 0"] if context.get("runAsUser") == 0 else [])
