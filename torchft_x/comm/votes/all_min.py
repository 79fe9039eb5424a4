"""The element-wise minimum of a few integers over all members of a quorum, on TCP connections of its own.

The groups vote with it before each commit, so it is the whole price of a step in which nothing else is sent. A small
all-reduce through gloo costs four changes of threads, and 2(n-1) hops one after the other in a ring of n; NCCL takes no
tensors in host memory. Here the thread that wants the answer writes and reads the sockets itself, in ceil(log2 n) rounds:
in round k rank r sends what it knows to rank r + 2^k, and hears rank r - 2^k (the dissemination of Hensgen, Finkel and
Manber, 1988; a minimum may count a member twice, so any n will do).

Nobody has the answer before every member has spoken; that one has it doesn't say that all do. So it is with every
all-reduce, and the protocol lives with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torchft_x.comm.store.create import KeyedAddress, StoreClient, client_of, split_store_address, under
from torchft_x.comm.votes.mesh import AllMinMesh
from torchft_x.errors import CollectiveError
from torchft_x.net import Address

Least = Callable[..., list[int]]
"""See `AllMinMesh.least`."""


class AllMin:
    """Made anew for each set of members: `offer`, then `connect`, then `least` as often as wanted.

    ``least(row, timeout, meanwhile)`` is that of the present members (`AllMinMesh.least`): the element-wise minimum of all
    members' rows.

    `abort` may come from any thread; the others belong to one thread at a time.

    Args:
        host: the address or name of this machine to listen on, and to be found by.
        width: how many integers there are.
    """

    def __init__(self, host: str, width: int) -> None:
        self._host = host
        self._width = width
        self._lock = threading.Lock()  # guards the attributes below; nothing waits under it
        self._circle: AllMinMesh | None = None  # the present members; None before the first and after the end
        self.least: Least = _not_started
        self._client: StoreClient | None = None  # of the store where the members meet, kept while its address stays

    def __repr__(self) -> str:
        return f"AllMin({self._circle})"

    def offer(self, store_addr: str, rank: int, names: Sequence[str], config_id: int, timeout: float) -> None:
        """Let go of the former members, and tell the new ones where this rank is. Waits for the store only.

        Args:
            store_addr: ``host:port/prefix`` that all members have in common, with a prefix of its own for each set.
            names: replica ids of all members, by rank.
            timeout: seconds.

        Raises `UnreachableError` if the store is gone, `AddressError` if `host` is none of this machine's.
        """
        circle = AllMinMesh(rank, names, config_id, self._width)
        with self._lock:
            old, self._circle, self.least = self._circle, circle, circle.least
        if old is not None:
            old.end("the group was configured anew")
            old.close()
        if len(names) > 1:
            address, prefix = split_store_address(store_addr)
            circle.offer(under(self._client_of(address).open(timeout), prefix), self._host)

    def connect(self, timeout: float) -> None:
        """Connect with the members, which `offer` as well. Returns when all this rank talks to are there.

        Raises `DeadlineError` naming who is missing, `CollectiveError` after an abort or if one has gone.
        """
        circle = self._circle
        if circle is None:
            _not_started()
        elif circle.size > 1:
            circle.connect(timeout)

    def abort(self, config_id: int) -> None:
        """Release whoever waits in the set of members `config_id`, here and, by the closed connections, elsewhere."""
        with self._lock:
            circle, client = self._circle, self._client
        if circle is None or circle.config_id != config_id:
            return
        if circle.end("the group was aborted") and client is not None:
            client.shut()  # it may wait for a store that doesn't answer

    def shutdown(self) -> None:
        with self._lock:
            circle, self._circle, self._client = self._circle, None, None
            self.least = _not_started
        if circle is not None:
            circle.end("the group was shut down")
            circle.close()

    def _client_of(self, address: Address | KeyedAddress) -> StoreClient:
        with self._lock:
            if self._client is None or not self._client.usable or self._client.address != address:
                self._client = client_of(address)
            return self._client


def _not_started(*args: object) -> list[int]:
    raise CollectiveError("the vote was not started: the group has no members yet.")
