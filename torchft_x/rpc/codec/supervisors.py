"""Codecs of supervisors' messages to a lighthouse, and of its answers for groups over several nodes; see `generic`."""

from __future__ import annotations

from torchft_x.core.messages import job as r
from torchft_x.core.messages import nodes as n
from torchft_x.core.messages.lighthouse import AttemptHalted
from torchft_x.errors import RefusedError
from torchft_x.net import parse_address
from torchft_x.rpc.codec.field_limits import check_token
from torchft_x.rpc.codec.generic import Codec, OneOf
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import limits


def _meeting(value: str) -> str:
    """Check the workers' rendezvous address, an argument for torchrun. Raises `AddressError`, `RefusedError`."""
    return parse_address(limits.check_text(value, "meeting address", 512), what="meeting address").target


HALTED = Codec(
    pb.AttemptHalted,
    AttemptHalted,
    limits={"attempt_token": check_token, "who": (limits.check_said, "name of a process", 64)},
)
ORDER = Codec(pb.Order, r.Order, limits={"kind": (limits.check_said, "an order", 64)})
GROUP_UP = OneOf(
    pb.SupervisorUp,
    started=Codec(pb.AttemptStarted, r.AttemptStarted),
    exited=Codec(pb.AttemptExited, r.AttemptExited),
    done=Codec(pb.SupervisorDone, r.SupervisorFinished),
    rests=Codec(pb.GroupRests, r.GroupRests),
)
_NODE_UP = OneOf(
    pb.SupervisorUp,
    ready=Codec(pb.NodeReady, n.NodeReady, limits={"meeting": lambda value: value and _meeting(value)}),
    started=Codec(pb.AttemptStarted, n.NodeStarted, limits={"attempt_token": check_token}),
    exited=Codec(pb.AttemptExited, n.NodeEnded, limits={"attempt_token": check_token}),
    done=Codec(pb.SupervisorDone, n.NodeDone),
)
NODE_DOWN = OneOf(
    pb.SupervisorDown,
    stop=Codec(pb.Stop, n.SendStop),
    begin=Codec(pb.AttemptBegin, n.SendBegin, limits={"attempt_token": check_token, "meeting": _meeting}),
    over=Codec(pb.AttemptOver, n.SendAttemptOver, limits={"attempt_token": check_token}),
)


def supervisor_here(stream: int, p: pb.SupervisorHello) -> r.SupervisorHere:
    """Decode the hello of a group's supervisor into an event. Raises `RefusedError`."""
    nodes = max(1, limits.check_whole(p.nodes, "number of nodes", limits.MAX_NODES))
    node = limits.check_whole(p.node, "node", nodes - 1)
    group, host = limits.check_name(p.group), limits.check_name(p.host or "?")
    incarnation = limits.check_text(p.incarnation, "incarnation", 128)
    return r.SupervisorHere(group, host, node, nodes, stream, incarnation)


def node_event(session: int, up: pb.SupervisorUp) -> n.NodeReady | n.NodeStarted | n.NodeEnded | n.NodeDone:
    """Decode a node's report into an event of the assembly. Raises `RefusedError`."""
    event: n.NodeReady | n.NodeStarted | n.NodeEnded | n.NodeDone | None = _NODE_UP.decode(up, session=session)
    if event is None:
        raise RefusedError(
            "A supervisor of a group over several nodes sends one hello, then ready, started, exited, done and ping; "
            "something else came."
        )
    return event
