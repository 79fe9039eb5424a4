"""Messages of supervisors to values of `core` and back: a part of `messages`, for the lighthouse and their clients."""

from __future__ import annotations

from torchft_x.core.messages import job as r
from torchft_x.core.messages import nodes as n
from torchft_x.core.messages.job import CompanionFinished
from torchft_x.core.messages.lighthouse import LastWord, LifeHalted
from torchft_x.errors import RefusedError
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport.limits import (
    MAX_ATTEMPT,
    MAX_NODES,
    check_replica_id,
    check_said,
    check_seconds,
    check_text,
    check_whole,
)


def supervisor_event(group: str, up: pb.SupervisorUp) -> r.LifeStarted | r.LifeExited | r.SupervisorFinished:
    """A supervisor's report as an event of the roster."""
    kind = up.WhichOneof("kind")
    if kind == "started":
        life = check_text(up.started.life, "life token", 512)
        return r.LifeStarted(group, _attempt(up.started.attempt), life)
    if kind == "exited":
        x = up.exited
        life, reason = check_text(x.life, "life token", 512), check_said(x.reason, "reason")
        return r.LifeExited(group, _attempt(x.attempt), life, x.code, reason)
    return r.SupervisorFinished(group, up.done.code, check_said(up.done.sentence, "sentence"))


def last_word(up: pb.SupervisorUp) -> LastWord | None:
    """What the life whose end is reported had received last, if the report says so."""
    told = up.WhichOneof("kind") == "exited" and up.exited.HasField("word")
    return messages.word_from_proto(up.exited.word) if told else None


def halted_event(stream: int, p: pb.LifeHalted) -> LifeHalted:
    """A process of a life is stopped, or goes on."""
    who = check_said(p.who, "name of a process", 64)
    return LifeHalted(stream, _token(p.life), who, check_seconds(p.seconds, "time of a stop"))


def companion_done(companion: str, p: pb.SupervisorDone) -> CompanionFinished:
    """A companion's last report as an event of the roster."""
    return CompanionFinished(companion, p.code, check_said(p.sentence, "sentence"))


def supervisor_here(p: pb.SupervisorHello) -> r.SupervisorHere:
    """The hello of a group's supervisor as an event of the roster."""
    nodes = max(1, check_whole(p.nodes, "number of nodes", MAX_NODES))
    node = check_whole(p.node, "node", nodes - 1)
    return r.SupervisorHere(check_replica_id(p.group), check_replica_id(p.host or "?"), node, nodes)


def node_hello(session: int, p: pb.SupervisorHello) -> n.NodeHere:
    """The hello of one node's supervisor, for a group over several nodes."""
    nodes = check_whole(p.nodes, "number of nodes", MAX_NODES)
    node = check_whole(p.node, "node", nodes - 1)
    group, host = check_replica_id(p.group), check_replica_id(p.host or "?")
    return n.NodeHere(session, group, node, nodes, check_text(p.incarnation, "incarnation", 128), host)


def node_event(session: int, up: pb.SupervisorUp) -> n.NodeReady | n.NodeStarted | n.NodeEnded | n.NodeDone:
    """A node's report as an event of the assembly."""
    kind = up.WhichOneof("kind")
    if kind == "ready":
        return n.NodeReady(session, _attempt(up.ready.attempt), _meeting(up.ready.meeting) if up.ready.meeting else "")
    if kind == "started":
        return n.NodeStarted(session, _attempt(up.started.attempt), _token(up.started.life))
    if kind == "ended":
        x = up.ended
        return n.NodeEnded(session, _attempt(x.attempt), _token(x.life), x.code, check_said(x.reason, "reason"))
    if kind == "done":
        return n.NodeDone(session, up.done.code, check_said(up.done.sentence, "sentence"))
    raise RefusedError(
        "A supervisor of a group over several nodes sends one hello, then ready, started, ended, done and ping; "
        "something else came."
    )


def begin_from_proto(p: pb.LifeBegin) -> tuple[int, str, str]:
    """Attempt, life token and meeting address."""
    return _attempt(p.attempt), _token(p.life), _meeting(p.meeting)


def over_life_from_proto(p: pb.LifeOver) -> tuple[str, int, str]:
    """Life token, code and reason."""
    return _token(p.life), int(p.code), check_said(p.reason, "reason")


def next_from_proto(p: pb.NextLife) -> int:
    """The number of a group's next life."""
    return _attempt(p.attempt)


def _attempt(value: int) -> int:
    return check_whole(value, "attempt", MAX_ATTEMPT)


def _token(value: str) -> str:
    if not value:
        raise RefusedError("A message was refused: the life token is empty.")
    return check_text(value, "life token", 512)


def _meeting(value: str) -> str:
    """An address the workers may meet at; it becomes an argument of torchrun."""
    return parse_address(check_text(value, "meeting address", 512), what="meeting address").target
