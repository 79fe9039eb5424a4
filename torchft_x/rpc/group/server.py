"""The group server's Python interface, for any thread. The server runs on the process's one loop.

It lives in the process of group rank 0 and speaks for the whole group. Rank 0 calls it without a socket.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc.aio

from torchft_x import env, net
from torchft_x._version import __version__
from torchft_x.core.group.join import GroupConfig
from torchft_x.core.messages import group as m
from torchft_x.core.messages.group import QuorumReply
from torchft_x.core.messages.lighthouse import RevokeQuorum
from torchft_x.core.types import AttemptId
from torchft_x.descriptors import close, not_inherited
from torchft_x.errors import AddressError, DeadlineError
from torchft_x.net import Address, any_host, parse_address
from torchft_x.rpc.group.client import fetch_checkpoint_metadata
from torchft_x.rpc.group.service import GroupService
from torchft_x.rpc.group.shell import FactsSource, GroupShell, OnEnd, OnRevoked, Push
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.loop import Notifier
from torchft_x.rpc.transport.resolve import find_lighthouses, moved_to
from torchft_x.rpc.transport.token import check_token
from torchft_x.timing import TIMING

log = logging.getLogger(__name__)

_BACKLOG = 128
_liveness_lock = threading.Lock()  # guards _liveness
_liveness: list[socket.socket] = []


class GroupServer:
    """Server of one group, and rank 0's client of it. It maintains the group's session with the lighthouse.

    `replica_id`: ``<group id>:<nonce>``. `lighthouse`: one address, or several with commas (`rpc.transport.resolve`).
    `host`: name or address by which others reach this process. `bind`: ``host:port`` to listen on, port 0 for any.
    `store_address`: the group's TCPStore, reported to other groups. `connect_timeout`: seconds within which the first
    session must be established; a broken one reconnects by itself. `on_kill(message)` carries out a Kill with the token;
    by default the process exits with 1, as torchft's does. `runs_on`: inside a grant, steps begin without the
    lighthouse. `commit_vote`: the group votes with the others before it commits; it must be equal in all groups.

    Raises `AddressError` (lighthouse's name or own port), `UnreachableError`, `TokenError`, `RefusedError`.
    """

    def __init__(
        self,
        *,
        replica_id: str,
        lighthouse: str,
        store_address: str,
        world_size: int,
        host: str | None = None,
        bind: str | None = None,
        attempt_id: AttemptId | None = None,
        token: str | None = None,
        connect_timeout: float = 60.0,
        boot_id: str | None = None,
        on_kill: Callable[[str], None] | None = None,
        runs_on: bool = False,
        commit_vote: bool = False,
    ) -> None:
        lighthouses, seek = find_lighthouses(lighthouse), _seek(lighthouse)
        self._token = check_token(token)  # sent to the lighthouse and to other groups' servers
        self.replica_id = replica_id
        self.world_size = world_size  # number of ranks of the group
        self._ids = itertools.count(1)  # call numbers; `next` is atomic
        self._notifiers: list[tuple[Notifier, OnRevoked, OnEnd]] = []  # direct watches; changed on the loop only
        self._closed = False  # set by the first shutdown
        self.shell: GroupShell  # set by `_start`, as the two attributes below
        self._service: GroupService
        self._server: grpc.aio.Server
        where = parse_address(bind, what="bind address") if bind else Address(any_host(), 0)

        def shell(address: str) -> GroupShell:
            config = GroupConfig(
                replica_id=replica_id,
                address=address,
                store_address=store_address,
                world_size=world_size,
                library=f"torchft_x/{__version__}",
                attempt_id=attempt_id or AttemptId(started=time.time()),
                boot_id=net.boot_id() if boot_id is None else boot_id,
                runs_on=runs_on,
                commit_vote=commit_vote,
            )
            return GroupShell(config, lighthouses, self._token, self._push, seek)

        start = self._start(shell, where, host, on_kill or _exit, connect_timeout)
        loop.call(start, connect_timeout + 10.0, "starting the group server")

    def __repr__(self) -> str:
        return f"GroupServer({self.replica_id} at {self.address()}{', closed' if self._closed else ''})"

    def address(self) -> str:
        """Return the ``http://host:port`` by which other groups and ranks reach this server."""
        return self.shell.config.address

    async def _start(
        self,
        make_shell: Callable[[str], GroupShell],
        bind: Address,
        host: str | None,
        on_kill: Callable[[str], None],
        timeout: float,
    ) -> None:
        connections = grpc_options.group_connections(grpc_options.raise_descriptor_limit(), self.world_size)
        server = grpc_options.make_server(self._token, connections)
        close_liveness_sockets()
        try:
            what = f"The group server ({env.MANAGER_PORT})" if bind.port else "The group server"
            port = grpc_options.listen(server, bind, what)
            address = grpc_options.advertised(bind, port, host)
            self.shell = make_shell(address.url)
            self._service = GroupService(self.shell, self._ids, on_kill, guarded=self._token is not None)
            server.add_generic_rpc_handlers(self._service.handlers())
            await server.start()
            self._server = server
            await self.shell.open(timeout)
        except BaseException:
            await server.stop(None)
            raise

    def close(self, *, early: bool = False) -> None:
        """Leave gracefully and free the port. The group can't commit after this. May be called twice.

        `early`: the training isn't finished. Without it, no group starts the training again before this process has
        ended (R21).
        """
        if self._closed:
            return
        self._closed = True
        supervised = bool(self.shell.config.attempt_id.token)  # True: the supervisor reports this process's end
        lingers = "" if early or supervised else open_liveness_socket(self.address())

        async def stop() -> None:
            await self.shell.close(TIMING.leave, early=early, lingers=lingers)
            await self._server.stop(None)
            for notifier, _, _ in self._notifiers:
                notifier.close()

        try:
            loop.call(stop(), TIMING.leave + 5.0, "shutting the group server down")
        except DeadlineError as e:
            log.warning("%s", e)

    # --- direct calls -------------------------------------------------------------------------------------------------

    def next_call(self) -> int:
        """Return the `call` number of an event."""
        return next(self._ids)

    def ask(self, ask: m.Ask) -> QuorumReply | concurrent.futures.Future[Any]:
        """Take rank 0's ask. Return what `answer` takes as `asked`: the answer if there is one at once."""
        return self.shell.submit(ask)

    def answer(self, ask: m.Ask, asked: Any, timeout: float) -> QuorumReply:
        """Return the answer to `ask`.

        Raises `DeadlineError` after `timeout` seconds, which names the missing ranks, groups or lighthouse, and the
        errors of `GroupClient.answer`.
        """
        if isinstance(asked, QuorumReply):
            return asked

        left = timeout
        while left > 0 and not asked.done():
            concurrent.futures.wait([asked], left)
            left = self.shell.deadline.prolonged(timeout, time.monotonic())
        if not asked.done():
            loop.post(self.shell.give_up, ask.call)
            concurrent.futures.wait([asked], TIMING.late_loop)
        if not asked.done():
            raise DeadlineError(f"The group server's own loop did not react for {TIMING.late_loop:g} s.")
        reply: QuorumReply = asked.result()  # it may have come at the last moment
        return reply

    def checkpoint_metadata(self, address: str, rank: int, timeout: float) -> str:
        """Return where rank `rank` of the group whose server is at `address` serves its state."""
        return fetch_checkpoint_metadata(address, rank, timeout, self._token)

    def story(self) -> list[str]:
        """Return the group's recent decisions and their reasons."""
        return self.shell.story()

    def report_facts(self, facts: FactsSource) -> None:
        """Let the lighthouse have these facts about the group."""
        self.shell.facts = facts

    def offer_hub(self, contact: bytes) -> None:
        """Set the address and secret with which rank 0 receives votes, for ranks that ask (`GroupClient.hub`)."""
        self._service.hub = contact

    def pause(self, seconds: float, reason: str) -> None:
        """Announce that the group may be silent or late for `seconds`; 0 ends the pause.

        Returns when the lighthouse has received it, or after 2 s at most."""
        reason = reason[:200]
        try:
            loop.call(self.shell.pause(seconds, reason), 2.0, "announcing the pause")
        except DeadlineError as e:
            log.warning("%s", e)

    def suspect(self, replica_ids: tuple[str, ...]) -> None:
        """Report to the lighthouse, without waiting, that a connection to these members broke."""
        loop.post(self.shell.suspect, replica_ids)

    @property
    def others_train(self) -> bool:
        """Whether other groups trained already when this one connected. They do not wait for it until it asks."""
        return self.shell.others_train

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds of silence after which the lighthouse counts a member without a supervisor as lost."""
        return self.shell.heartbeat_timeout

    def watch(self, on_revoked: OnRevoked, on_end: OnEnd) -> None:
        """Call back, on a thread of its own, when a quorum is revoked or the group must stop."""
        notifier = Notifier(f"watch-{self.replica_id}")

        def begin() -> None:
            notifier.post(lambda: None)  # starts its thread: Python 3.12 starts none while a script ends
            self._notifiers.append((notifier, on_revoked, on_end))
            for push in (self.shell.last_revoked, self.shell.end):
                if push is not None:
                    _notify(notifier, on_revoked, on_end, push)

        loop.post(begin)

    def _push(self, push: Push) -> None:
        for notifier, on_revoked, on_end in self._notifiers:
            _notify(notifier, on_revoked, on_end, push)
        self._service.push(push)


def _seek(lighthouse: str) -> Callable[[], tuple[Address, ...]] | None:
    """Return the function that looks up the job's own lighthouse if it moves; None if the script names another."""
    file = env.read_attempt().lighthouse_file
    return partial(moved_to, file) if file and lighthouse == env.read(env.LIGHTHOUSE) else None


def _notify(notifier: Notifier, on_revoked: OnRevoked, on_end: OnEnd, push: Push) -> None:
    if isinstance(push, RevokeQuorum):
        notifier.post(lambda: on_revoked(push.quorum_id, push.lost, push.reason, push.left))
    else:
        notifier.post(lambda: on_end(push.sentence, push.fenced))


def _exit(message: str) -> None:
    log.error("Killed by request: %s", message)
    os._exit(1)


def open_liveness_socket(beside: str) -> str:
    """Listen until this process ends, and return the address, with the host of the address `beside`; '' if that fails.

    By it a lighthouse sees whether a group that has left and has no supervisor still evaluates or saves (R21). No code
    accepts or reads: the kernel takes connections until its queue is full, then it drops them. Only a refused connect has
    a meaning: the process is gone.
    """
    try:
        host, any_address = parse_address(beside).host, any_host()
        family = socket.AF_INET6 if ":" in any_address else socket.AF_INET
        listening = not_inherited(
            socket.create_server(
                (any_address, 0), family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6
            )
        )
    except (AddressError, OSError, ValueError) as e:
        log.debug("no socket stands for this process: %s", e)
        return ""
    with _liveness_lock:
        _liveness.append(listening)
    return Address(host, listening.getsockname()[1]).url


@atexit.register
def close_liveness_sockets() -> None:
    """Close those opened so far: this process ends, or works for a new group server."""
    with _liveness_lock:
        sockets, _liveness[:] = list(_liveness), []
    for listening in sockets:
        close(listening)
