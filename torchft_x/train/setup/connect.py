"""Connects the ranks of one group: the group's store, its group server, and each rank's client of the server.

Rank 0 starts the group server and writes its address into the store, from which the others read it. If rank 0 can't
start the server, the others raise its error.

There are two stores with different lifetimes. In the *group's* store (at MASTER_ADDR and MASTER_PORT) the ranks of one
group find rank 0; a group of one rank needs none. It is torch's and answers everybody, so rank 0 seals its entries with
the run's token: the others send their token to nobody else. In the *meeting* store the process groups of several groups
find each other. It is rank 0's own and dies with its group, and no other group waits for it.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.distributed as dist

from torchft_x import env, log_lines, tls
from torchft_x.comm.store.create import create_store_client, host_store, serve_store
from torchft_x.comm.store.server import StoreServer
from torchft_x.comm.votes.ranks import Hub, Spoke
from torchft_x.core.training.memory_checkpoint import newest_common
from torchft_x.core.types import AttemptId, State
from torchft_x.errors import DeadlineError, TorchftXError, UnreachableError
from torchft_x.net import Address, any_host
from torchft_x.rpc.group.client import GroupClient
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.group.shell import GroupShell
from torchft_x.timing import POLL_FAST, TIMING
from torchft_x.train.setup.options import Options

if TYPE_CHECKING:
    from torchft_x.rpc.coordination import LighthouseServer

logger = logging.getLogger(__name__)

_made: Counter[tuple[str, str, int]] = Counter()  # number of Managers made in this process, by (store, group, rank)
_made_lock = threading.Lock()


@dataclass(frozen=True)
class GroupConnection:
    """A rank's connections within its group. Agrees with the other ranks through the group's store."""

    replica_id: str
    client: GroupClient | GroupServer
    options: Options
    link: GroupShell | Spoke  # knows whether the group has a session with the lighthouse
    store: dist.Store | None = None  # the group's store, if the group has several ranks
    keys: str = ""  # prefix of this Manager's keys in the store
    meeting: StoreServer | None = None  # the meeting store, on rank 0, which serves it
    hub: Hub | None = None  # on rank 0, if the group has several ranks
    spoke: Spoke | None = None  # on the other ranks
    others_train: bool = False  # whether other groups trained when this one joined; equal on all its ranks
    own_lighthouse: LighthouseServer | None = None  # lighthouse of a group that trains alone

    def close(self, wait: bool = True, *, early: bool = False) -> None:
        """Leave the job at a step boundary, and close the connections.

        With `wait`, rank 0 waits until the other ranks have read their last answers. `early`: the training isn't done.
        """
        o = self.options
        if self.store is not None and wait:
            try:
                if o.group_rank != 0:
                    self.store.set(f"{self.keys}/left/{o.group_rank}", b"1")
                else:
                    self._wait_for_ranks(self.store)
            except RuntimeError as e:
                logger.debug("the group's store is gone: %s", e)
        self.client.close(early=early)
        if self.meeting is not None:
            self.meeting.close()
        for end in (self.hub, self.spoke):
            if end is not None:
                end.close()
        if self.own_lighthouse is not None:
            self.own_lighthouse.shutdown()

    def agree(self, about: str, said: dict[str, str] | None, timeout: float) -> dict[str, str]:
        """Return rank 0's value `said` on all ranks. Call it once for each `about`; ranks other than 0 pass None.

        Raises `DeadlineError` after `timeout` seconds, and RuntimeError if the group's store is lost.
        """
        if self.store is None or said is not None:
            assert said is not None, "one rank is rank 0"
            if self.store is not None:
                _tell(self.store, f"{self.keys}/{about}", said, self.options.token)
            return said
        return self._hear(about, 0, timeout)

    def all_fine(self, about: str, fine: bool, timeout: float) -> bool:
        """Return whether `fine` is true on all ranks. Call it once for each `about`. Raises the errors of `agree`."""
        return self._combine(about, str(int(fine)), min, timeout) == "1"

    def _combine(self, about: str, mine: str, combine: Callable[[list[str]], str], timeout: float) -> str:
        """Return, on all ranks, what rank 0's `combine` makes of the words of all ranks, which are in any order."""
        rank, ranks = self.options.group_rank, self.options.group_world_size
        if self.store is not None and rank != 0:
            _tell(self.store, f"{self.keys}/{about} {rank}", {"word": mine}, self.options.token)
            return self.agree(about, None, timeout)["word"]
        others = [self._hear(f"{about} {r}", r, timeout)["word"] for r in range(1, ranks)]
        return self.agree(about, {"word": combine([mine, *others])}, timeout)["word"]

    def _hear(self, about: str, rank: int, timeout: float) -> dict[str, str]:
        assert self.store is not None
        late = f"rank {rank} has said nothing about {about} within {timeout:g} s; look at its log."
        return _wait_for(self.store, f"{self.keys}/{about}", self.options, timeout, late)

    def newest_copy(self, held: Sequence[State]) -> State | None:
        """Return the newest state of which all ranks hold a complete copy; None if there is none.

        `held` are the states of this rank's complete copies. All ranks must call it once. Raises the errors of `agree`.
        """

        def newest(words: list[str]) -> str:
            common = newest_common([_states(held) for held in words])
            return _words(() if common is None else (common,))

        return max(_states(self._combine("copies", _words(held), newest, self.options.connect_timeout)), default=None)

    def stop(self, why: str) -> None:
        """Release all waits for other ranks of the group, because the group must stop. May be called on any thread."""
        for end in (self.hub, self.spoke):
            if end is not None:
                end.end(why)

    def _wait_for_ranks(self, store: dist.Store) -> None:
        keys = [f"{self.keys}/left/{r}" for r in range(1, self.options.group_world_size)]
        deadline = time.monotonic() + TIMING.leave_wait
        while not store.check(keys) and time.monotonic() < deadline:
            time.sleep(POLL_FAST)


def connect(options: Options) -> GroupConnection:
    """Start or find this group's server.

    Raises `AddressError`, `UnreachableError` or `TokenError` about the lighthouse, `UnreachableError` or
    `DeadlineError` about the group's own store and rank 0.
    """
    if options.lighthouse is not None:
        env.enable_tls_if_https(options.lighthouse)
    tls.use_token(options.token)
    if tls.is_on(tensors=True) and options.group_rank == 0:
        logger.warning("TLS covers all but collectives: torch's gloo, NCCL and XCCL send tensors in clear.")
    if options.group_world_size == 1:
        return _gather(options, None, "")
    store, address = open_store(options)
    keys = _own_keys(options, address)
    return _gather(options, store, keys) if options.group_rank == 0 else _follow(options, store, keys)


def _gather(options: Options, store: dist.Store | None, keys: str) -> GroupConnection:
    """Serve the group on rank 0, and publish the server's address to the other ranks, if there are any."""
    replica_id = f"{options.replica_id}:{uuid.uuid4()}"
    own = _start_own_lighthouse(options) if options.alone else None
    if own is not None:
        options = replace(options, lighthouse=own.address())
    try:
        assert options.lighthouse is not None  # checked by Options on rank 0
        meeting, address = serve_store(options.host)
        server = GroupServer(
            replica_id=replica_id,
            lighthouse=options.lighthouse,
            host=options.host,
            bind=Address(any_host(), options.port).target,
            store_address=address.text,
            world_size=options.group_world_size,
            attempt_id=AttemptId(options.attempt, time.time(), options.attempt_token),
            token=options.token,
            connect_timeout=options.connect_timeout,
            runs_on=True,
            commit_vote=options.commit_vote,
        )
        hub = None
        try:
            options.check_against(server.heartbeat_timeout)
            if store is not None:
                hub = Hub(options.host, options.group_world_size)
                server.offer_hub(hub.contact)
        except TorchftXError:
            server.close()
            raise
    except TorchftXError as e:
        if store is not None:
            _tell(store, f"{keys}/group", {"error": str(e)}, options.token)
        raise
    if store is not None:
        said = {"address": server.address(), "replica_id": replica_id, "others_train": str(int(server.others_train))}
        _tell(store, f"{keys}/group", said, options.token)
    return GroupConnection(
        replica_id,
        server,
        options,
        server.shell,
        store,
        keys,
        meeting,
        hub=hub,
        others_train=server.others_train,
        own_lighthouse=own,
    )


def _start_own_lighthouse(options: Options) -> LighthouseServer:
    """Start a lighthouse for a script that is run without a launcher, as the only group."""
    from torchft_x.rpc.coordination import LighthouseServer

    own = LighthouseServer("127.0.0.1:0", 1, token=options.token)
    log_lines.print_line(
        f"torchft_x: no lighthouse is named ({env.LIGHTHOUSE}), so this script trains alone, as a job of one group, with a "
        f"lighthouse of its own at {own.address()}."
    )
    return own


def open_store(options: Options) -> tuple[dist.Store, Address]:
    """Return the group's store and its address.

    Rank 0 hosts the store unless torchrun does, or the user's own store listens at the address already.
    """
    host = options.store_host or options.host
    address = Address(host, options.store_port)
    if options.group_rank == 0 and not options.agent_store:
        try:
            return host_store(host, options.connect_timeout, options.store_port)
        except UnreachableError as e:
            logger.debug("%s Taking it for the group's store.", e)
    return _store_client(options, address), address


def _store_client(options: Options, address: Address) -> dist.Store:
    """Connect to the group's store. Retry until the deadline, because rank 0 or torchrun may not serve it yet."""
    deadline = time.monotonic() + options.connect_timeout
    while True:
        try:
            return create_store_client(address.target, options.connect_timeout)
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_FAST * 10)


def _own_keys(options: Options, address: Address) -> str:
    """Return the prefix of this Manager's keys.

    All ranks make their Managers in the same order, so the n-th Managers of all ranks belong together.
    """
    who = (address.target, options.replica_id, options.group_rank)
    with _made_lock:
        nth = _made[who]
        _made[who] += 1
    return f"{options.key_prefix}/{nth}"


def _follow(options: Options, store: dist.Store, keys: str) -> GroupConnection:
    limit, group = options.connect_timeout, options.replica_id or "(unnamed)"
    late = f"rank 0 of group {group} has not started its group server within {limit:g} s; look at rank 0's log."
    said = _wait_for(store, f"{keys}/group", options, limit, late)
    if "error" in said:
        raise UnreachableError(f"rank 0 could not join: {said['error']}")
    client = GroupClient(said["address"], token=options.token, connect_timeout=limit)
    try:
        spoke = Spoke(client.hub(limit), options.group_rank, limit)
    except TorchftXError:
        client.close()
        raise
    others_train = said.get("others_train") == "1"
    return GroupConnection(
        said["replica_id"], client, options, spoke, store, keys, spoke=spoke, others_train=others_train
    )


def _wait_for(store: dist.Store, key: str, options: Options, timeout: float, late: str) -> dict[str, str]:
    """Return the entry at `key`. Raises `DeadlineError` with the sentence `late` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (entry := _opened(store, key, options.token)) is None:
        if time.monotonic() > deadline:
            raise DeadlineError(f"rank {options.group_rank}: {late}")
        time.sleep(POLL_FAST)
    return entry


def _opened(store: dist.Store, key: str, token: str | None) -> dict[str, str] | None:
    """Return the entry at `key`; None if it is absent, or not sealed with the token."""
    raw = store.get(key) if store.check([key]) else b""
    seal, _, text = raw.partition(b" ")
    if not hmac.compare_digest(seal, _seal(key, text, token)):
        return None
    return {str(name): str(value) for name, value in json.loads(text).items()}


def _seal(key: str, text: bytes, token: str | None) -> bytes:
    return hmac.new((token or "").encode(), f"torchft_x {key} ".encode() + text, "sha256").hexdigest().encode()


def _words(states: Sequence[State]) -> str:
    return " ".join(f"{s.step},{s.committed_in}" for s in states)


def _states(words: str) -> list[State]:
    return [State(*map(int, word.split(","))) for word in words.split()]


def _tell(store: dist.Store, key: str, said: dict[str, str], token: str | None) -> None:
    text = json.dumps(said).encode()
    try:
        store.set(key, _seal(key, text, token) + b" " + text)
    except RuntimeError as e:
        logger.warning("the group's store does not take what rank 0 says: %s", e)
