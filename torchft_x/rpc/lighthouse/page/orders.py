"""Sending of the orders kill, drain and resume, as `core.job.orders` decides. Runs on the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from torchft_x.core.job.orders import EVERY, KINDS, Order, Orders, OrderTarget
from torchft_x.core.messages.job import GroupRests, RosterEvent, SupervisorHere
from torchft_x.errors import RefusedError
from torchft_x.net import parse_address
from torchft_x.observe.view.attempts import AttemptTable
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.token import metadata
from torchft_x.timing import ANSWER, CONNECT


class OrderDesk:
    """Desk that carries out orders from people.

    `send(order)` sends one to the group's supervisors; `addresses(group)` returns its living members' group servers."""

    def __init__(
        self,
        attempts: AttemptTable,
        token: str | None,
        send: Callable[[Order], None],
        addresses: Callable[[str], Iterable[str]],
        note: Callable[[str], None],
    ) -> None:
        self._attempts = attempts
        self._token = token  # None: all orders are refused
        self._send = send
        self._addresses = addresses
        self._note = note  # logs a sentence
        self.table = Orders()

    def receive(self, event: RosterEvent) -> None:
        """Record whether a supervisor's group rests, and repeat the group's order to one that has just connected."""
        if isinstance(event, GroupRests):
            self.table.receive(event)
        elif isinstance(event, SupervisorHere) and event.stream:
            order = self.table.arrived(event.group)
            if order is not None:
                self._send(order)

    async def give(self, kind: str, group: str) -> str:
        """Carry out an order, and return a sentence about what happens now.

        Raises `RefusedError`, also if a group server can't be reached; `AddressError`."""
        if self._token is None:
            raise RefusedError(
                "This lighthouse has no token, so that anybody who reaches it could give orders: it takes none. Start it "
                "with --token_file."
            )
        if kind not in KINDS:
            raise RefusedError(f"There is no order {kind!r:.50}; the orders are {', '.join(KINDS)}.")
        if group == EVERY and kind != "kill":
            return self._give_all(kind)
        attempts, addresses = self._attempts.get(group), tuple(self._addresses(group))
        if attempts is None and not addresses:
            raise RefusedError(f"There is no group {group!r:.200} here.")
        order = self.table.give(kind, _asked(group, self._attempts, bool(addresses)))
        if order is not None:
            self._send(order)
        else:
            for address in addresses:
                await self._exit(group, address)
        sentence = _SENTENCES[kind].format(group)
        self._note(sentence)
        return sentence

    def _give_all(self, kind: str) -> str:
        """Pause or resume the job: order all groups with a connected supervisor at once.

        So those with older states wait for those that hold the newest."""
        active = [g.group for g in self._attempts if g.here and g.finished is None]
        known = [_asked(group, self._attempts, reachable=False) for group in active]
        resting = [a.rests or a.group in self.table.drained for a in known]
        chosen = [a for a, rests in zip(known, resting, strict=True) if rests is (kind == "resume")]
        if not chosen:
            raise RefusedError("No group is drained." if kind == "resume" else "No group with a supervisor runs.")
        for asked in chosen:
            order = self.table.give(kind, asked)
            if order is not None:
                self._send(order)
        names = sorted((a.group for a in chosen), key=lambda group: (len(group), group))
        sentence = _TO_ALL[kind].format(", ".join(names))
        self._note(sentence)
        return sentence

    async def _exit(self, group: str, address: str) -> None:
        """Make a group server end its process. A broken connection means that it did."""
        target = parse_address(address, what=f"address of group {group}")
        async with grpc_options.aio_channel(target) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), CONNECT)
            except asyncio.TimeoutError:
                raise RefusedError(f"Group {group} can't be killed: its server at {address} does not answer.") from None
            call = channel.unary_unary(f"/{grpc_options.MANAGER}/Kill")
            request = peer_pb.KillRequest(msg="killed by request").SerializeToString()
            try:
                await call(request, timeout=ANSWER, metadata=metadata(self._token))
            except grpc.RpcError as e:
                if e.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise RefusedError(f"Group {group} can't be killed: {e.details()}") from None


_TO_ALL = {
    "drain": "The job is paused by request: groups {} leave at their next step boundaries, and rest until it is resumed.",
    "resume": "The job is resumed by request: groups {}.",
}
_SENTENCES = {
    "kill": "Group {} is killed by request, and started again by whoever keeps it running.",
    "drain": "Group {} is drained by request: it leaves at its next step boundary, and rests until it is resumed.",
    "resume": "Group {} is resumed by request.",
}


def _asked(group: str, attempts: AttemptTable, reachable: bool) -> OrderTarget:
    known = attempts.get(group)
    if known is None:
        return OrderTarget(group, False, "", False, False, False, reachable)
    token, finished = known.attempt_token, known.finished is not None
    return OrderTarget(group, known.here, token, known.alive, known.rests, finished, reachable)
