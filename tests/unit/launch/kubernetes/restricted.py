"""What the level `restricted` of Kubernetes' Pod Security Standards asks of a pod, with all that `baseline` forbids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
_HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(template: Json) -> list[str]:
    """Return what admission would refuse of a pod or a pod's template, each as the field and its value."""
    return [*_of_pod(template), *(found for c in _containers(template["spec"]) for found in _of_container(c, template))]


def _containers(spec: Json) -> list[Json]:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in spec.get(kind) or []]


def _of_pod(template: Json) -> Iterator[str]:
    spec = template["spec"]
    context = spec.get("securityContext") or {}
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field}: true"
    for volume in spec.get("volumes") or []:
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    yield from (f"sysctl {s['name']}" for s in context.get("sysctls") or [] if s["name"] not in _SYSCTLS)
    for name, value in ((template.get("metadata") or {}).get("annotations") or {}).items():
        if name.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield f"{name}: {value}"
    yield from _of_context(context, "pod")


def _of_container(container: Json, template: Json) -> Iterator[str]:
    pod, own, name = (
        template["spec"].get("securityContext") or {},
        container.get("securityContext") or {},
        container["name"],
    )
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot is not true"
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield f"{name}: no seccomp profile"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name}: does not drop ALL capabilities"
    yield from (f"{name}: adds {c}" for c in capabilities.get("add") or [] if c != "NET_BIND_SERVICE")
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount {own['procMount']}"
    yield from (f"{name}: host port {p['hostPort']}" for p in container.get("ports") or [] if p.get("hostPort"))
    handlers = [container.get(kind) or {} for kind in _HANDLERS] + list((container.get("lifecycle") or {}).values())
    for handler in handlers:
        yield from (f"{name}: probes {a['host']}" for a in handler.values() if isinstance(a, dict) and a.get("host"))
    yield from _of_context(own, name)


def _of_context(context: Json, where: str) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: runAsNonRoot false"
    for profile in ("seccompProfile", "appArmorProfile"):
        if (context.get(profile) or {}).get("type") == "Unconfined":
            yield f"{where}: {profile} Unconfined"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in _SELINUX or selinux.get("user") or selinux.get("role"):
        yield f"{where}: seLinuxOptions"
