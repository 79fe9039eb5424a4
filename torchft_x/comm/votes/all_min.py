"""The element-wise minimum of a few integers over all members of a quorum, on TCP connections of its own.

The groups vote with it before each commit, so it is the whole cost of a step that sends nothing else. A small
all-reduce through gloo costs four thread switches, and 2(n-1) sequential hops in a ring of n; NCCL takes no tensors
in host memory. Here the calling thread writes and reads the sockets itself, in ceil(log2 n) rounds. In round k rank r
sends its minimum so far to rank r + 2^k, and receives that of rank r - 2^k. That is the dissemination of Hensgen,
Finkel and Manber, 1988; a minimum may count a member twice, so n need not be a power of two.

No member has the result before every member has sent its row. That one member has it does not mean that all have. The
same holds for every all-reduce, and the commit protocol allows for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torchft_x.comm.store.create import KeyedAddress, StoreClient, split_store_address
from torchft_x.comm.votes.mesh import AllMinMesh
from torchft_x.errors import CollectiveError
from torchft_x.net import Address

Minimum = Callable[..., list[int]]
"""Signature of `AllMinMesh.minimum`."""


class AllMin:
    """The vote between the groups. For each set of members call `offer`, `connect`, then `minimum` any number of times.

    ``minimum(row, timeout, meanwhile)`` is that of the present members (`AllMinMesh.minimum`): it returns the
    element-wise minimum of all members' rows.

    `abort` may be called from any thread; the other methods by one thread at a time.

    Args:
        host: the address or name of this machine on which to listen, and which others connect to.
        width: number of integers in a row.
    """

    def __init__(self, host: str, width: int) -> None:
        self._host = host
        self._width = width
        self._lock = threading.Lock()  # guards the fields below; never held while waiting
        self._mesh: AllMinMesh | None = None  # None before the first `offer` and after `shutdown`
        self.minimum: Minimum = _not_started
        self._client: StoreClient | None = None  # client of the members' store, reused while its address stays

    def offer(self, store_addr: str, rank: int, names: Sequence[str], config_id: int, timeout: float) -> None:
        """Release the former members, and publish this rank's address to the new ones. Waits for the store only.

        Args:
            store_addr: ``host:port/prefix`` common to all members, with a prefix of its own for each set of members.
            rank: this rank's index in `names`.
            names: replica ids of all members, by rank.
            config_id: names this set of members in `abort`.
            timeout: seconds.

        Raises `UnreachableError` if the store is gone, `AddressError` if `host` is not an address of this machine.
        """
        mesh = AllMinMesh(rank, names, config_id, self._width)
        with self._lock:
            old, self._mesh, self.minimum = self._mesh, mesh, mesh.minimum
        if old is not None:
            old.end("the group was configured anew")
            old.close()
        if len(names) > 1:
            address, prefix = split_store_address(store_addr)
            mesh.offer(self._client_of(address).open(timeout).under(prefix), self._host)

    def connect(self, timeout: float) -> None:
        """Connect with the members, after all have called `offer`. Return when all of this rank's peers are connected.

        Raises `DeadlineError` naming the missing members, `CollectiveError` after an abort or if a member has gone.
        """
        mesh = self._mesh
        if mesh is None:
            _not_started()
        elif mesh.size > 1:
            mesh.connect(timeout)

    def abort(self, config_id: int) -> None:
        """Release callers that wait in set `config_id`, here and, by the closed connections, in other processes."""
        with self._lock:
            mesh, client = self._mesh, self._client
        if mesh is None or mesh.config_id != config_id:
            return
        mesh.end("the group was aborted")
        if mesh.connecting and client is not None:
            client.shut()  # it may be waiting for a store that doesn't answer

    def shutdown(self) -> None:
        with self._lock:
            mesh, self._mesh, self._client = self._mesh, None, None
            self.minimum = _not_started
        if mesh is not None:
            mesh.close()

    def _client_of(self, address: Address | KeyedAddress) -> StoreClient:
        with self._lock:
            self._client = StoreClient.of(address, self._client)
            return self._client


def _not_started(*args: object) -> list[int]:
    raise CollectiveError("the vote was not started: the group has no members yet.")
