"""Names that Kubernetes takes: DNS labels (RFC 1123) of at most 63 characters, for objects, hosts and labels' values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchft_x.errors import ConfigError

MOST = 63
_UNIQUE = 14  # characters of what makes two jobs' names differ, with its dash
_LEAST = 3  # characters of a job's own name that must be left

MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
ROLE = "app.kubernetes.io/component"
REPLICA = "torchft-x/replica"
GROUP = "torchft-x/group"
MINIMUM = "torchft-x/min-replicas"  # annotation of the anchor
GROUPS = "torchft-x/groups"  # annotation of the lighthouse's pod: so many there shall be
FAULT = "torchft-x/fault-"  # so begin annotations of the anchor that hold what chaos did, an event each
QUEUE = "kueue.x-k8s.io/queue-name"
OURS = "torchft_x"  # value of MANAGED_BY


def label(text: str) -> str:
    """As a DNS label: lower case, other characters as dashes; may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MOST].strip("-")


def label_of(found: Mapping[str, Any], name: str) -> str:
    """A label of an object as the API server gives it; empty: it has none."""
    return str(((found.get("metadata") or {}).get("labels") or {}).get(name, ""))


def place_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """Role and replica of a Job or pod."""
    return label_of(found, ROLE), label_of(found, REPLICA)


def check(name: str, what: str) -> None:
    """Raises `ConfigError`, beginning with `what`, unless an object may have this name (a DNS subdomain)."""
    if len(name) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise ConfigError(f"{what}: Kubernetes' names are lower case letters, digits, dashes and dots, 253 at most.")


def app_id(name: str, unique: str, roles: dict[str, int]) -> str:
    """Of a job whose parts can be named, too. The name is shortened where it must be, what makes it unique is not.

    `roles`: replicas by name. Raises `ConfigError` where a role leaves no room.
    """
    longest = max((len(part("", role, max(n, 9999))) for role, n in roles.items()), default=0)
    room = MOST - longest - _UNIQUE
    for role in roles:
        if not label(role):
            raise ConfigError(f"the role {role!r} has no letter or digit that a name on Kubernetes may have.")
    if room < _LEAST:
        role = max(roles, key=len)
        raise ConfigError(
            f"the role's name {role!r} is too long for Kubernetes, whose names have {MOST} characters at most."
        )
    own = label(name)
    own = own if own[:1].isalpha() else f"job-{own}".strip("-")  # a Service's name begins with a letter
    return f"{own[:room].strip('-')}-{label(unique)[: _UNIQUE - 1]}"


def part(app: str, role: str, replica: int) -> str:
    """Of the Job of one replica of a role, and its pod's host name."""
    return f"{app}-{label(role)}-{replica}"


def service(app: str) -> str:
    """Of the Service that leads to the lighthouse."""
    return f"{app}-lighthouse"


def page(app: str) -> str:
    """Of the NetworkPolicy of the lighthouse's page."""
    return f"{app}-page"
