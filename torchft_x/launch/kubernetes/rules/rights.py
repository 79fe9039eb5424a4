"""RBAC rules for the person who submits, watches and cancels a job. The job's own pods need no rights."""

from __future__ import annotations

import json
from typing import Any

RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "list", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "list", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
)

MORE: tuple[dict[str, Any], ...] = (
    {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["configmaps", "pods"], "verbs": ["patch"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["patch"]},
)
"""Additional rules for `torchft_x`'s commands: status, kill, drain, resume (and the token, for orders), scale, chaos."""


def role(name: str = "torchft-x") -> dict[str, Any]:
    """Return a Role with all rules."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": [dict(rule) for rule in (*RULES, *MORE)],
    }


def line(group: str, resource: str, verb: str) -> str:
    """Return a rule as one line of a Role's YAML."""
    return f"- {{apiGroups: {json.dumps([group])}, resources: {json.dumps([resource])}, verbs: {json.dumps([verb])}}}"
