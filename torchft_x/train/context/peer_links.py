"""A rank's connections to the same rank of the other groups: the user's process group and, on rank 0, the vote's.

After connects to members failed, `silent` finds those whose hosts don't answer.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchft_x.comm.votes.all_min import AllMin
from torchft_x.core import cross_group_vote
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import Quorum, group_number
from torchft_x.descriptors import not_inherited
from torchft_x.net import parse_address
from torchft_x.timing import TIMING
from torchft_x.train.setup.options import Options

_AT_ONCE = 64  # connects under way at the same time
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class PeerLinks:
    """Connections that are configured and ended together. `abort` may be called on any thread."""

    def __init__(self, pg: Any, options: Options) -> None:
        self.pg = pg
        self.all_min = AllMin(options.host, cross_group_vote.WIDTH)
        self._options = options

    def configure(self, plan: QuorumPlan, replica_id: str, *, votes: bool) -> None:
        """Connect with the members of `plan`; with `votes` also for the vote. Raises the error of a failed connect."""
        o = self._options
        address = f"{plan.store_address}/torchft_x/{plan.config_id}/{o.group_rank}"
        group = group_number(replica_id)
        limit = min(o.timeout, TIMING.connect)
        if not votes:
            self.all_min.shutdown()
        else:  # before the process group connects, so that all addresses are known afterwards
            self.all_min.offer(address, plan.replica_rank, plan.replica_ids, plan.config_id, limit)
        self.pg.configure(
            address,
            replica_id,
            plan.replica_rank,
            plan.replica_world_size,
            quorum_id=plan.config_id,
            group_rank=o.group_rank,
            group_world_size=o.group_world_size,
            global_ranks=None if group is None else [group * o.group_world_size + o.group_rank],
        )
        if votes:
            self.all_min.connect(limit)

    def abort(self, config_id: int) -> None:
        """Release all waits for the members of `config_id`."""
        self.all_min.abort(config_id)
        self.pg.abort(config_id)

    def shutdown(self) -> None:
        self.all_min.shutdown()
        self.pg.shutdown()


def silent(quorum: Quorum | None, replica_id: str) -> tuple[str, ...]:
    """Return the replica ids of the quorum's other members whose group servers' hosts do not answer this one."""
    members = quorum.members if quorum is not None else ()
    others = {m.replica_id: m.address for m in members if m.replica_id != replica_id}
    return unanswered(others, TIMING.answers)


def unanswered(addresses: Mapping[str, str], seconds: float) -> tuple[str, ...]:
    """Return the names of the addresses (``http://host:port``) whose hosts have not answered a connect in `seconds`.

    A refused connect is an answer. An address that can't be resolved says nothing about the link, and is left out.
    """
    deadline = time.monotonic() + seconds

    def is_silent(address: str) -> bool:
        rest = deadline - time.monotonic()
        try:
            if rest > 0:
                # Only the first address of a name, as each would take the whole time.
                family, kind, number, _, where = socket.getaddrinfo(*parse_address(address), type=socket.SOCK_STREAM)[0]
                with not_inherited(socket.socket(family, kind, number)) as s:
                    s.settimeout(rest)
                    s.connect(where)
        except OSError as e:
            return isinstance(e, TimeoutError) or e.errno in _NO_WAY
        except ValueError:  # an AddressError, or no name at all
            pass
        return False

    try:
        with ThreadPoolExecutor(_AT_ONCE, "torchft_x-silent") as pool:  # its threads end before this returns
            silent = zip(addresses, pool.map(is_silent, addresses.values()), strict=True)
            return tuple(sorted(name for name, it_is in silent if it_is))
    except RuntimeError:  # no more threads, or the interpreter ends: nobody is named
        return ()
