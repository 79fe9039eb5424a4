"""The wire, byte for byte, and every refusal: `golden.json` has what was sent, and what was made of what arrives.

``pytest --rewrite`` writes the file. Do it when the wire is meant to change, and read the difference: a byte that changes in what was there is a new wire, a "taken" instead of a "refused" is a hole.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.golden import Golden
from torchft_x.core.fingerprint import Fingerprint, Trait
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import AttemptId, JoinReason, Member, Prepared, Quorum, State
from torchft_x.errors import TorchftXError
from torchft_x.rpc.codec import messages, ranks, supervisors
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb

GOLDEN = Path(__file__).with_name("golden.json")

STATE, ATTEMPT_ID, PREPARED = State(7, 1 << 40), AttemptId(3, 1.5, "token"), Prepared(9, 8, (1 << 64) - 1)
TRAITS = Fingerprint((Trait("model", "d1", "2 tensors", ("a (2,)", "b (3,)"), (0, 300)), Trait("data set", "d2", "w")))
LEAST = Member("a:1")
MEMBER = Member(
    "b:2", "http://h:1", "h:2/p", STATE, True, 300, True, 2, '{"k": 1}', ("x", ""), PREPARED, "lib/1", (4, 1 << 33), True,
    ((0, 4), (6, 300)), 3,
)  # fmt: skip
SMALL = Quorum(1, 1, 1, (LEAST,))
QUORUM = Quorum(900, 800, 7, (LEAST, MEMBER), 12.5, 1 << 20, 120.0)
HELLO = lm.Hello(7, "b:2", ATTEMPT_ID, "http://h:1", STATE, QUORUM, 5, 6.5, "boot", "torchft_x/1", True)
ASK = gm.Ask(
    0, 3, STATE, True, True, 2, "meta", "handle", JoinReason.FAILED, ("a:1", "c:3"), TRAITS, 0.25, True, True, 30.0, 4.5, ("d:4",),
    ((0, 4), (6, 300)), 3,
)  # fmt: skip
PLAN = QuorumPlan(900, 800, 7, 1, 2, STATE, True, (MEMBER,), 1, (0, 2), "h:2/p", 1, 2, ("a:1", "b:2"), ("x", ""), 3)
HEALTHY = dataclasses.replace(PLAN, heal=False, sources=(), source_rank=None, dst_ranks=(), max_replica_rank=None)


def _bytes(message: Message) -> bytes:
    return bytes(message.SerializeToString())


SENT: dict[str, Callable[[], bytes]] = {
    "State": lambda: _bytes(messages.STATE.encode(STATE)),
    "State, empty": lambda: _bytes(messages.STATE.encode(State())),
    "AttemptId": lambda: _bytes(messages.ATTEMPT_ID.encode(ATTEMPT_ID)),
    "AttemptId, empty": lambda: _bytes(messages.ATTEMPT_ID.encode(AttemptId())),
    "Prepared": lambda: _bytes(messages.PREPARED.encode(PREPARED)),
    "Quorum": lambda: _bytes(messages.QUORUM.encode(QUORUM)),
    "Quorum, least": lambda: _bytes(messages.QUORUM.encode(SMALL)),
    "Hello": lambda: _bytes(messages.hello_to_proto(HELLO)),
    "Hello, least": lambda: _bytes(messages.hello_to_proto(lm.Hello(7, "a:1"))),
    "Up.join": lambda: messages.up_bytes(lm.Join(0, MEMBER, JoinReason.NEW, ("a:1",), TRAITS, 5, 0.5, 30.0, ("d:4",))),
    "Up.join, least": lambda: messages.up_bytes(lm.Join(0, LEAST, JoinReason.BOUNDARY, ())),
    "Up.join, nothing declared": lambda: messages.up_bytes(
        lm.Join(0, LEAST, JoinReason.HEALED, (), Fingerprint(), patience=0.0)
    ),
    "Up.progress": lambda: messages.up_bytes(lm.Progress(0, 900, 8, 5, 0.5)),
    "Up.progress, empty": lambda: messages.up_bytes(lm.Progress(0, 0, 0, 0, 0.0)),
    "Up.leave": lambda: messages.up_bytes(lm.Leave(0, STATE, True, "h:9")),
    "Up.leave, least": lambda: messages.up_bytes(lm.Leave(0)),
    "Up.pause": lambda: messages.up_bytes(lm.Paused(0, 2.5, "evaluation")),
    "Up.pause, over": lambda: messages.up_bytes(lm.Paused(0, 0.0)),
    "Up.suspects": lambda: messages.up_bytes(lm.Suspected(0, ("a:1", "b:2"))),
    "Down.waits": lambda: messages.down_bytes(lm.SendWaits("x" * 5000, True, (1,))),
    "Down.waits, least": lambda: messages.down_bytes(lm.SendWaits("why", False, (1,))),
    "Down.grant": lambda: messages.down_bytes(lm.Extend(900, 1 << 20, 120.0, 5, 7)),
    "Revoked": lambda: _bytes(messages.REVOKED.encode(lm.RevokeQuorum(900, ("a:1", "b:2"), "lost", True, (1,)))),
    "Revoked, of ranks": lambda: _bytes(messages.REVOKED.encode(lm.RevokeQuorum(900, (), ""))),
    "torchft.QuorumMember": lambda: _bytes(messages.peer_member_to_proto(MEMBER)),
    "torchft.QuorumMember, least": lambda: _bytes(messages.peer_member_to_proto(LEAST)),
    "torchft.LighthouseQuorumResponse": lambda: messages.peer_quorum_bytes(QUORUM),
    "torchft.ManagerQuorumRequest": lambda: _bytes(ranks.ask_to_proto(ASK, init_sync=True, ours=True, holds=9)),
    "torchft.ManagerQuorumRequest, least": lambda: _bytes(
        ranks.ask_to_proto(gm.Ask(0, 0, State()), init_sync=False, ours=False)
    ),
    "torchft.ManagerQuorumResponse, of torchft": lambda: ranks.plan_bytes(PLAN),
    "torchft.ManagerQuorumResponse, of torchft, healthy": lambda: ranks.plan_bytes(HEALTHY),
    "torchft.ManagerQuorumResponse": lambda: ranks.quorum_reply_bytes(
        ranks.QuorumReply(SMALL, 0.0, STATE, PREPARED, True), b"packed", holds=0, lease_left=2.5
    ),
    "torchft.ManagerQuorumResponse, known": lambda: ranks.quorum_reply_bytes(
        ranks.QuorumReply(SMALL, 0.0), b"packed", holds=1, lease_left=2.5
    ),
    "Traits": lambda: _bytes(messages.TRAITS.encode(TRAITS)),
    "Traits, none": lambda: _bytes(messages.TRAITS.encode(Fingerprint())),
}
"""By name; what comes after the comma is for people."""

Read = Callable[[Any], object]


def _inside(
    envelope: type[Message], read: Read, words: str, *, after: str = ""
) -> dict[str, tuple[type[Message], Read]]:
    """How the messages in these fields of an envelope are read, by the names of both."""
    fields = {name: envelope.DESCRIPTOR.fields_by_name[name].message_type._concrete_class for name in words.split()}
    return {
        f"{envelope.DESCRIPTOR.name}.{name}{after}": (kind, lambda p, name=name: read(envelope(**{name: p})))
        for name, kind in fields.items()
    }


READ: dict[str, tuple[type[Message], Read]] = {
    "State": (pb.State, messages.STATE.decode),
    "AttemptId": (pb.AttemptId, messages.ATTEMPT_ID.decode),
    "Prepared": (pb.Prepared, messages.PREPARED.decode),
    "Member": (pb.Member, messages.MEMBER.decode),
    "Quorum": (pb.Quorum, messages.QUORUM.decode),
    "Traits": (pb.Traits, messages.TRAITS.decode),
    "Traits.traits": (pb.Trait, lambda p: messages.TRAITS.decode(pb.Traits(traits=[p]))),
    "Hello": (pb.Hello, lambda p: messages.HELLO.decode(p, session=7)),
    "Up.hello": (pb.Ping, lambda _: messages.up_to_event(7, pb.Up(hello=pb.Hello()))),
    **_inside(pb.Up, lambda p: messages.up_to_event(7, p), "join progress leave ping pause suspects"),
    **_inside(pb.Down, messages.down_to_event, "grant fenced refused waits pong"),
    "Revoked": (pb.Revoked, messages.REVOKED.decode),
    "torchft.QuorumMember": (peer_pb.QuorumMember, messages.peer_member_from_proto),
    "torchft.ManagerQuorumRequest": (peer_pb.ManagerQuorumRequest, lambda p: ranks.ask_from_proto(7, p)),
    "torchft.ManagerQuorumResponse": (
        peer_pb.ManagerQuorumResponse,
        lambda p: ranks.quorum_reply_from_bytes(p.SerializeToString(), SMALL, who="server of b", now=0.0),
    ),
    "torchft.ShouldCommitRequest": (peer_pb.ShouldCommitRequest, lambda p: ranks.VOTE.decode(p, call=7)),
    "SupervisorHello": (pb.SupervisorHello, lambda p: supervisors.supervisor_here(7, p)),
    "SupervisorUp.done, of a sidecar": (
        pb.SupervisorDone,
        lambda p: supervisors.GROUP_UP.decode(pb.SupervisorUp(done=p), group="eval", sidecar=True),
    ),
    "SupervisorUp.halted": (pb.AttemptHalted, lambda p: supervisors.HALTED.decode(p, stream=7)),
    **_inside(pb.SupervisorUp, lambda p: supervisors.GROUP_UP.decode(p, group="g"), "started exited done"),
    **_inside(
        pb.SupervisorUp, lambda p: supervisors.node_event(7, p), "ready started exited done ping", after=", of a node"
    ),
    **_inside(pb.SupervisorDown, lambda p: supervisors.NODE_DOWN.decode(p, session=7), "begin over"),
}
"""How each message is read, by name."""

HONEST: dict[str, object] = {
    "replica_id": "a:1", "group": "g", "host": "h", "attempt_token": "token", "reason": "new", "meeting": "h:1",
    "nodes": 2,
    "name": "model", "digest": "d", "words": "w", "quorum_id": 5, "holds": 1,
    "held": [2, 4],
}  # fmt: skip
"""By field name, where the type's usual value would be refused."""


def honest(kind: type[Message]) -> Any:
    """A message with something in every field, that is taken."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        value = HONEST.get(field.name) if not _is_message(field) else None
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and isinstance(value, str | None):
            value = b"" if field.type == FieldDescriptor.TYPE_BYTES else value or "text"
        elif field.type == FieldDescriptor.TYPE_BOOL:
            continue  # each is tried by itself: they say what the message is
        elif _is_message(field):
            value = honest(field.message_type._concrete_class)
        elif not isinstance(value, int | list):
            value = 1
        _put(made, field, [value] if field.is_repeated and not isinstance(value, list) else value)
    return made


def hostile(field: FieldDescriptor, honest_value: Any) -> Iterator[tuple[str, object]]:
    """What somebody may put there, and a word for it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        one: dict[str, object] = {}
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = {"garbage": b"\xff\xff"}
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        one = {"empty": "", "long": "x" * 70_000, "longish": "y" * 600, "steering": "a\x1b[2J\nb\t"}
    elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        one = {"none": 0.0, "negative": -1.0, "infinite": math.inf, "no number": math.nan}
    elif field.type == FieldDescriptor.TYPE_BOOL:
        one = {"true": True}
    else:
        signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32)
        bits = 64 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
        one = {"none": 0, "large": 20_000, "largest": (1 << bits - signed) - 1} | ({"negative": -1} if signed else {})
    if field.is_repeated:
        yield from ((what, [value]) for what, value in one.items())
        yield "nothing", []
        yield "many", (list(honest_value) or [field.message_type._concrete_class()]) * 20_000
    else:
        yield from one.items()


def _is_message(field: FieldDescriptor) -> bool:
    return field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    message.ClearField(field.name)
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    elif _is_message(field):
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def leaves(value: object) -> list[object]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [x for f in dataclasses.fields(value) if f.compare for x in leaves(getattr(value, f.name))]
    return [x for v in value for x in leaves(v)] if isinstance(value, tuple) else [value]


def outcome(read: Callable[[Any], object], message: Any, usual: list[object]) -> str:
    """What is made of it, as far as it is not what is made of the honest message."""
    try:
        value = leaves(read(message))
    except TorchftXError as e:  # `RefusedError`, or `AddressError` for an address
        return f"refused: {e}"
    shown = [f"{x!r:.40}" for x in value if repr(x) not in map(repr, usual)][: 3 if usual else None]
    more = len(value) - len(usual) if usual else 0
    return ", ".join(["taken", *shown, *([f"{more:+} values"] if more else [])])


def outcomes(name: str) -> dict[str, str]:
    kind, read = READ[name]
    base = honest(kind)
    found = {"": outcome(read, base, [])}
    known = leaves(read(base)) if found[""].startswith("taken") else []
    for field in kind.DESCRIPTOR.fields:
        for what, value in hostile(field, getattr(base, field.name)):
            message = kind()
            message.CopyFrom(base)
            _put(message, field, value)
            found[f"{field.name} {what}"] = outcome(read, message, known)
        message = kind()
        message.CopyFrom(base)
        message.ClearField(field.name)
        found[f"{field.name} absent"] = outcome(read, message, known)
    return found


def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_same_bytes_are_sent_and_the_same_is_made_of_what_arrives(golden: Golden) -> None:
    found = {"sent": {n: f().hex() for n, f in SENT.items()}, "read": {n: outcomes(n) for n in READ}}
    golden.check(GOLDEN, json.dumps(found, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("State", STATE),
        ("AttemptId", ATTEMPT_ID),
        ("Prepared", PREPARED),
        ("Quorum", QUORUM),
        ("Quorum, least", SMALL),
        ("Hello", HELLO),
        ("Hello, least", lm.Hello(7, "a:1")),
        ("Traits", TRAITS),
        ("torchft.ManagerQuorumRequest", dataclasses.replace(ASK, call=7)),
        ("torchft.ManagerQuorumRequest, least", gm.Ask(7, 0, State())),
    ],
)
def test_bytes_of_long_ago_are_read(name: str, value: object) -> None:
    kind, read = READ[name.partition(",")[0]]
    assert read(kind.FromString(bytes.fromhex(recorded()["sent"][name]))) == value


def test_every_field_of_ours_is_tried() -> None:
    """A field that is added to a message of the wire has its limit pinned here."""
    for name, (kind, _) in READ.items():
        tried = {case.partition(" ")[0] for case in recorded()["read"][name]} - {""}
        assert tried == {f.name for f in kind.DESCRIPTOR.fields}, name
