"""Limits on open files: the process gets as many as the system allows, and its server a part of them for connections.

Each connection costs a descriptor, even a silent one. If strangers took all of them, the process could open no socket
of its own: a lighthouse could not probe a member's address, a trainer could not connect to the others. So gRPC takes
only a part, and closes further connections at once; the other options in `grpc_options.server_options` free room
again.
"""

from __future__ import annotations

import resource

ENOUGH = 65536
"""Highest limit that is set: some programs iterate over all possible descriptors."""
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
    """Return the number of connections that a lighthouse accepts, given its limit of open files."""
    return max(limit // 2, limit - 4 * OWN)


def for_group(limit: int, world_size: int) -> int:
    """Return the number of connections that a group server accepts, given its limit of open files.

    They come from its own ranks and from healing groups; the training needs the remaining descriptors."""
    return max(limit // 4, min(4 * world_size + 64, limit // 2))
