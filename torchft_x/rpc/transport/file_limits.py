"""Open files: as many as the system allows, and a part of them for whoever connects.

A connection that says nothing costs a descriptor, too. Were all of them taken by strangers, the process could open no
socket of its own: a lighthouse no connection to a member's address, a trainer none to the others. So gRPC takes a part
only, and closes what is over it at once; the rest of `grpc_options.server_options` makes room again.
"""

from __future__ import annotations

import resource

ENOUGH = 65536
"""No limit is raised further: some programs walk through all descriptors that there may be."""
OWN = 128
"""Descriptors a lighthouse needs for itself."""


def raise_limit() -> int:
    """Raise this process's limit of open files, as far as its hard limit lets it, and return it.

    Most systems begin with 1,024 and allow half a million; the low one is for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a sandbox may forbid it
        return soft
    return wanted


def for_lighthouse(limit: int) -> int:
    """Connections a lighthouse takes."""
    return max(limit // 2, limit - 4 * OWN)


def for_group(limit: int, world_size: int) -> int:
    """Connections a group server takes: its ranks' and those of the groups that heal; the training needs the rest."""
    return max(limit // 4, min(4 * world_size + 64, limit // 2))
