"""Merges a user's overlay into a pod's spec, by the rules of Kubernetes' strategic merge patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
