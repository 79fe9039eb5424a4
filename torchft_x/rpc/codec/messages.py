"""Codecs of the session between group and lighthouse, of the lighthouse's journal, and of torchft's messages.

Our own wire is the protobuf package ``torchft_x``; names with ``peer`` in them use torchft's. See `generic`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from torchft_x.core import fingerprint
from torchft_x.core.journal import Departure, MemberEntry
from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import AttemptId, Member, Prepared, Quorum, State
from torchft_x.errors import RefusedError
from torchft_x.observe.view import facts
from torchft_x.rpc.codec.field_limits import reason_to_join
from torchft_x.rpc.codec.generic import Codec, OneOf
from torchft_x.rpc.codec.generic import parse as parse
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options, limits


def _check_quorum(p: pb.Quorum) -> None:
    """Check a quorum's total size: the limits of fields alone would admit a message that takes seconds to read."""
    if not 0 < len(p.members) <= limits.MAX_MEMBERS:
        raise RefusedError(
            f"A message was refused: a quorum of {len(p.members)} members, 1 to {limits.MAX_MEMBERS} are allowed."
        )
    values = sum(len(m.handles) + len(m.carried) + len(m.held) for m in p.members)
    if values > limits.MAX_TOLD_VALUES:
        raise RefusedError(
            f"A message was refused: a quorum has {values} handles, carried quorums and held slots, at most "
            f"{limits.MAX_TOLD_VALUES} are allowed."
        )


def _counts(values: Sequence[int]) -> tuple[int, ...]:
    limits.check_count(values, "buckets", len(facts.BOUNDS) + 1)
    return tuple(values)


def _trait_parts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple([limits.check_plain(v, "a part of a trait", fingerprint.MAX_TEXT) for v in values])


def _trait_ranks(values: Sequence[int]) -> tuple[int, ...]:
    limits.check_count(values, "ranks of a trait", fingerprint.MAX_RANKS)
    return tuple([limits.check_whole(v, "a rank of a trait", fingerprint.MAX_RANKS) for v in values])


def _check_traits(p: pb.Traits) -> None:
    """Check the total size of a group's traits, whose parts are long."""
    limits.check_count(p.traits, "traits", fingerprint.MAX_TRAITS)
    parts = [part for x in p.traits for part in x.parts]
    limits.check_count(parts, "parts of traits", fingerprint.MAX_ALL_PARTS)
    limits.check_whole(sum(map(len, parts)), "the number of characters in parts of traits", fingerprint.MAX_CHARACTERS)


STATE = Codec(pb.State, State)
ATTEMPT_ID = Codec(pb.AttemptId, AttemptId, limits={"number": (limits.check_whole, "attempt", limits.MAX_ATTEMPT)})
PREPARED = Codec(pb.Prepared, Prepared)
Codec(
    pb.Trait,
    fingerprint.Trait,
    limits={
        **dict.fromkeys(("name", "digest", "words"), (limits.check_name, "a trait's text", fingerprint.MAX_TEXT)),
        "parts": _trait_parts,
        "ranks": _trait_ranks,
    },
)
TRAITS = Codec(pb.Traits, fingerprint.Fingerprint, names={"items": "traits"}, check=_check_traits)
MEMBER = Codec(pb.Member, Member, apart=["traits"])
QUORUM = Codec(pb.Quorum, Quorum, check=_check_quorum)
HELLO = Codec(pb.Hello, lm.Hello, apart=["wire"])
MEMBER_ENTRY = Codec(pb.MemberEntry, MemberEntry)
LEFT = Codec(pb.Left, Departure)
REVOKED = Codec(pb.Revoked, lm.RevokeQuorum)
Codec(pb.Counted, facts.Counted, limits={"counts": _counts})
Codec(pb.Moment, facts.Moment, limits={"what": (limits.check_plain, "moment", 64)})
Codec(pb.Copy, facts.Copy, limits={"source": (limits.check_plain, "source", 512)})
FACTS = Codec(pb.Facts, facts.Facts, check=lambda p: limits.check_count(p.moments, "moments", facts.MOST_MOMENTS))
# The message has the traits in its member.
_JOIN = Codec(pb.Join, lm.Join, limits={"reason": reason_to_join}, apart=["traits"])
_UP = OneOf(
    pb.Up,
    join=_JOIN,
    progress=Codec(pb.Progress, lm.Progress),
    leave=Codec(pb.Leave, lm.Leave),
    ping=Codec(pb.Ping, lm.SignOfLife),
    pause=Codec(pb.Pause, lm.Paused, limits={"reason": (limits.check_said, "reason", 200)}),
    suspects=Codec(pb.Suspects, lm.Suspected, names={"suspects": "replica_ids"}),
)
_DOWN = OneOf(
    pb.Down,
    grant=Codec(pb.Grant, lm.Extend),
    revoked=REVOKED,
    fenced=Codec(pb.Fenced, lm.Fence),
    refused=Codec(pb.Refused, lm.Refuse),
    waits=Codec(pb.Waits, lm.SendWaits, writers={"reason": lambda reason: reason[: limits.MAX_TEXT]}),
)
_PEER_MEMBER = Codec(
    peer_pb.QuorumMember,
    Member,
    names={"handles": "reconfigure_handles"},
    apart=["state", "step", "torn", "prepared", "library", "carried", "votes_late", "held", "weight"],
)


def hello_to_proto(v: lm.Hello) -> pb.Hello:
    p: pb.Hello = HELLO.encode(v)
    p.wire = grpc_options.WIRE
    return p


def up_bytes(sent: lm.Join | lm.Progress | lm.Leave | lm.Paused | lm.Suspected) -> bytes:
    """Encode a whole `Up` message."""
    up = _UP.encode(sent)
    if isinstance(sent, lm.Join) and sent.traits is not None:
        # Only a join carries the traits: in a quorum they would be sent back to all members at every step.
        up.join.member.traits.CopyFrom(TRAITS.encode(sent.traits))
    return bytes(up.SerializeToString())


def facts_bytes(reported: facts.Facts) -> bytes:
    """Encode facts as bytes to append to an encoded `Up` message, which then carries them, too."""
    return bytes(pb.Up(facts=FACTS.encode(reported)).SerializeToString())


def up_to_event(session: int, up: pb.Up) -> lm.LighthouseEvent:
    """Decode a session's message after its hello into an event of the lighthouse. Raises `RefusedError`."""
    if up.WhichOneof("kind") == "join":
        member = up.join.member
        traits = TRAITS.decode(member.traits) if member.HasField("traits") else None
        return _JOIN.decode(up.join, session=session, traits=traits)
    event: lm.LighthouseEvent | None = _UP.decode(up, session=session)
    if event is None:
        raise RefusedError(
            "A session sends one hello, then join, progress, leave, pause, suspects and ping; something else came."
        )
    return event


def down_bytes(sent: lm.Extend | lm.RevokeQuorum | lm.Fence | lm.Refuse | lm.SendWaits) -> bytes:
    """Encode a whole `Down` message."""
    return bytes(_DOWN.encode(sent).SerializeToString())


def down_to_event(down: pb.Down) -> gm.GroupEvent | lm.SendWaits | None:
    """Decode a lighthouse's message after its welcome into an event; None for a pong. Raises `RefusedError`."""
    if down.WhichOneof("kind") == "quorum":
        return gm.QuorumArrived(unpack(down.quorum))
    event: gm.GroupEvent | lm.SendWaits | None = _DOWN.decode(down)
    return event


def pack(quorum: Quorum) -> bytes:
    """Encode and compress a quorum, once for all of its members.

    Their entries are alike: 59 KB of 512 groups on one host become 5 KB, 105 KB of as many hosts become 33 KB.
    """
    return zlib.compress(QUORUM.encode(quorum).SerializeToString(), 1)


def unpack(data: bytes) -> Quorum:
    """Decode a packed quorum. Raises `RefusedError`, also if it would take more than `MAX_CLIENT_MESSAGE` bytes."""
    reader = zlib.decompressobj()
    try:
        unpacked = reader.decompress(data, grpc_options.MAX_CLIENT_MESSAGE)
    except zlib.error:
        unpacked = b""
    if not reader.eof:
        raise RefusedError("A message was refused: a packed quorum is damaged or too large.")
    return QUORUM.read(unpacked, "quorum")


def peer_member_to_proto(v: Member) -> peer_pb.QuorumMember:
    p: peer_pb.QuorumMember = _PEER_MEMBER.encode(v)
    p.step = v.state.step
    return p


def peer_member_from_proto(p: peer_pb.QuorumMember) -> Member:
    return _PEER_MEMBER.decode(p, state=State(limits.check_whole(p.step, "step")))


def peer_quorum_bytes(quorum: Quorum) -> bytes:
    """Encode a whole LighthouseQuorumResponse.

    torchft's `quorum_id` is our config id: it changes only when members change or a step failed."""
    reply = peer_pb.LighthouseQuorumResponse()
    reply.quorum.quorum_id = quorum.config_id
    reply.quorum.participants.extend(peer_member_to_proto(x) for x in quorum.members)
    reply.quorum.created.FromNanoseconds(int(quorum.created * 1e9))
    return bytes(reply.SerializeToString())
