"""Names that Kubernetes accepts: DNS labels (RFC 1123) of at most 63 characters, for objects, hosts and labels' values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchft_x.errors import ConfigError

MOST = 63
_UNIQUE = 14  # characters of the suffix that makes a job's name unique, with its dash
_LEAST = 3  # minimum of characters of a job's own name

MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
ROLE = "app.kubernetes.io/component"
REPLICA = "torchft-x/replica"
GROUP = "torchft-x/group"
MINIMUM = "torchft-x/min-replicas"  # annotation of the anchor
GROUPS = "torchft-x/groups"  # annotation of the lighthouse's pod: the number of groups
FAULT = "torchft-x/fault-"  # prefix of the anchor's annotations that hold chaos's faults, an event each
QUEUE = "kueue.x-k8s.io/queue-name"
OURS = "torchft_x"  # value of MANAGED_BY
TLS_PAGE = "page-tls"  # name of the port of a page that speaks TLS; "page" for others


def label(text: str) -> str:
    """Return the text as a DNS label: in lower case, other characters as dashes. The label may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MOST].strip("-")


def label_of(found: Mapping[str, Any], name: str) -> str:
    """Return a label's value from an object of the API server, or '' if the object does not have it."""
    return str(((found.get("metadata") or {}).get("labels") or {}).get(name, ""))


def check(name: str, what: str) -> None:
    """Raise `ConfigError`, with a message that begins with `what`, unless the name is a DNS subdomain, as objects need."""
    if len(name) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise ConfigError(f"{what}: Kubernetes' names are lower case letters, digits, dashes and dots, 253 at most.")


def app_id(name: str, unique: str, roles: dict[str, int]) -> str:
    """Return a job's id, short enough for its parts' names. `name` is cut as needed, `unique` only to 13 characters.

    `roles`: numbers of replicas by role. Raise `ConfigError` if a role's name can't be used or leaves too little room.
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
    """Return the name of the Job of one replica of a role, which is its pod's host name too."""
    return f"{app}-{label(role)}-{replica}"


def service(app: str) -> str:
    return f"{app}-lighthouse"
