"""Check the orders that a person gives to a group, and send them to those who carry them out. On the loop's thread.

* *kill*: the running attempt is killed at once (SIGKILL) and restarted, as after any other death. It costs no restart.
* *drain*: the group leaves at its next step boundary, and is not started until a person resumes it.
* *resume*: a drained group starts again.

A group's supervisor carries an order out: it can end a hanging process, and it alone can prevent a restart. A group
without a supervisor (torchft's clients, a script started by hand) can only be killed, through its group server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from torchft_x.core.messages.job import GroupRests, Order, RosterEvent, SupervisorHere
from torchft_x.errors import RefusedError
from torchft_x.net import parse_address
from torchft_x.observe.view.attempts import AttemptTable, GroupAttempts
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.token import metadata
from torchft_x.timing import ANSWER, CONNECT

EVERY = "*"
"""Used in place of a group id with drain and resume: all groups concerned, so that the job pauses or goes on."""
_REASONS = {"kill": "killed by request", "drain": "drained by request", "resume": "resumed by request"}


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
        self.drained: set[str] = set()  # groups that are to rest

    def receive(self, event: RosterEvent) -> None:
        """Take a supervisor's report, and repeat a drain to one that has just connected and may not know of it.

        The report that a group rests restores its drain, because a restarted lighthouse has forgotten its orders."""
        if isinstance(event, GroupRests):
            (self.drained.add if event.rests else self.drained.discard)(event.group)
        elif isinstance(event, SupervisorHere) and event.stream and event.group in self.drained:
            self._send(Order("drain", event.group, "", _REASONS["drain"]))

    async def give(self, kind: str, group: str) -> str:
        """Carry out an order, and return a sentence about what happens now.

        Raises `RefusedError`, also if a group server can't be reached; `AddressError`."""
        if self._token is None:
            raise RefusedError(
                "This lighthouse has no token, so that anybody who reaches it could give orders: it takes none. Start it "
                "with --token_file."
            )
        if kind not in _REASONS:
            raise RefusedError(f"There is no order {kind!r:.50}; the orders are {', '.join(_REASONS)}.")
        if group == EVERY and kind != "kill":
            return self._give_all(kind)
        known, addresses = self._attempts.get(group), tuple(self._addresses(group))
        if known is None and not addresses:
            raise RefusedError(f"There is no group {group!r:.200} here.")
        known = known or GroupAttempts(group)
        if known.finished is not None:
            raise RefusedError(f"Group {group} has finished: there is nothing of it to {kind}.")
        if kind == "kill" and not known.here and addresses:
            for address in addresses:
                await self._exit(group, address)
        else:
            self._order(kind, known)
        sentence = _SENTENCES[kind].format(group)
        self._note(sentence)
        return sentence

    def _give_all(self, kind: str) -> str:
        """Pause or resume the job: order all groups with a connected supervisor at once.

        So those with older states wait for those that hold the newest."""
        active = [g for g in self._attempts if g.here and g.finished is None]
        chosen = [g for g in active if self._rests(g) is (kind == "resume")]
        if not chosen:
            raise RefusedError("No group is drained." if kind == "resume" else "No group with a supervisor runs.")
        for known in chosen:
            self._order(kind, known)
        names = sorted((g.group for g in chosen), key=lambda group: (len(group), group))
        sentence = _TO_ALL[kind].format(", ".join(names))
        self._note(sentence)
        return sentence

    def _order(self, kind: str, known: GroupAttempts) -> None:
        """Send an order to the group's supervisors. Raises `RefusedError` if they can't carry it out."""
        group, token = known.group, ""
        if kind == "kill":
            if not (known.here and known.alive):
                raise RefusedError(f"No process of group {group} runs now.")
            token = known.attempt_token
        elif not known.here:
            raise RefusedError(
                f"Group {group} has no supervisor here, which alone could {kind} it; end its processes with SIGTERM, and "
                "they leave at a step boundary. (`torchft_x supervise` starts a group with one.)"
            )
        elif kind == "drain":
            if self._rests(known):
                raise RefusedError(f"Group {group} is drained already, or about to be.")
            self.drained.add(group)
        else:
            if not self._rests(known):
                raise RefusedError(f"Group {group} is not drained.")
            self.drained.discard(group)
        self._send(Order(kind, group, token, _REASONS[kind]))

    def _rests(self, known: GroupAttempts) -> bool:
        """Return whether the group is drained, or about to be."""
        return known.rests or known.group in self.drained

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
