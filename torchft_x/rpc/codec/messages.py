"""Wire messages to values of `core` and back.

Nothing that arrives is trusted: see `transport.limits`. What supervisors say is in `supervisors`.
Our own wire is package ``torchft_x``; functions with ``peer`` in their name speak torchft's.
"""

from __future__ import annotations

import math
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from torchft_x.core.messages import group as gm
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.types import JoinReason, Life, Member, Prepared, Quorum, State
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import fingerprint
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.limits import (
    MAX_ATTEMPT,
    MAX_CARRIED,
    MAX_DATA,
    MAX_FOLLOWED,
    MAX_MEMBERS,
    MAX_RANKS,
    MAX_TEXT,
    MAX_TOLD,
    MAX_TOLD_VALUES,
    check_plain,
    check_replica_id,
    check_said,
    check_seconds,
    check_text,
    check_texts,
    check_whole,
    clean,
)

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, what: str) -> M:
    """Bytes as a message. Raises `RefusedError`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RefusedError(f"The {what} is not a {kind.__name__} message; is the sender another program?") from None


def check_reason(value: str) -> JoinReason:
    """Why a member asks; empty: the usual."""
    try:
        return JoinReason(value) if value else JoinReason.BOUNDARY
    except ValueError:
        raise RefusedError(
            f"A message was refused: {check_text(value, 'reason', 64)!r} is no reason to join."
        ) from None


# --- our wire --------------------------------------------------------------------------------------------------------


def state_to_proto(state: State) -> pb.State:
    return pb.State(step=state.step, committed_in=state.committed_in)


def state_from_proto(p: pb.State) -> State:
    return State(check_whole(p.step, "step"), check_whole(p.committed_in, "committed_in"))


def life_to_proto(life: Life) -> pb.Life:
    return pb.Life(attempt=life.attempt, started=life.started, token=life.token)


def life_from_proto(p: pb.Life) -> Life:
    return Life(
        check_whole(p.attempt, "attempt", MAX_ATTEMPT),
        check_seconds(p.started, "start time"),
        check_text(p.token, "life token", 512),
    )


def prepared_to_proto(v: Prepared) -> pb.Prepared:
    return pb.Prepared(quorum=v.quorum, step=v.step, digest=v.digest)


def prepared_from_proto(p: pb.Prepared) -> Prepared:
    return Prepared(check_whole(p.quorum, "prepared quorum"), check_whole(p.step, "prepared step"), p.digest)


def member_to_proto(v: Member) -> pb.Member:
    return pb.Member(
        replica_id=v.replica_id,
        address=v.address,
        store_address=v.store_address,
        state=state_to_proto(v.state),
        torn=v.torn,
        world_size=v.world_size,
        shrink_only=v.shrink_only,
        commit_failures=v.commit_failures,
        data=v.data,
        handles=v.handles,
        prepared=None if v.prepared is None else prepared_to_proto(v.prepared),
        library=v.library,
        carried=v.carried,
        votes_late=v.votes_late,
    )


def member_from_proto(p: pb.Member) -> Member:
    carried = p.carried
    if len(carried) > MAX_CARRIED:
        raise RefusedError(
            f"A message was refused: a member was a carrier of {len(carried)} quorums, at most {MAX_CARRIED} are allowed."
        )
    return Member(
        replica_id=check_replica_id(p.replica_id),
        address=check_plain(p.address, "address"),
        store_address=check_text(p.store_address, "store address"),
        state=state_from_proto(p.state),
        torn=p.torn,
        world_size=check_whole(p.world_size, "world size", MAX_RANKS),
        shrink_only=p.shrink_only,
        commit_failures=check_whole(p.commit_failures, "commit_failures"),
        data=check_text(p.data, "data", MAX_DATA),
        handles=check_texts(p.handles, "handles", MAX_RANKS),
        prepared=prepared_from_proto(p.prepared) if p.HasField("prepared") else None,
        library=check_plain(p.library, "library", 128),
        carried=tuple([check_whole(q, "carried quorum") for q in carried]) if carried else (),
        votes_late=p.votes_late,
    )


def quorum_to_proto(v: Quorum, *, members: bool = True) -> pb.Quorum:
    """`members`: with them."""
    return pb.Quorum(
        id=v.id,
        config_id=v.config_id,
        number=v.number,
        members=[member_to_proto(x) for x in v.members] if members else (),
        created=v.created,
        granted_through=v.granted_through,
        lease_s=v.lease,
        follows=[quorum_to_proto(x) for x in v.follows],
        since=v.since,
    )


def quorum_from_proto(p: pb.Quorum, *, followed: bool = False) -> Quorum:
    """`followed`: another one names it as what it follows, so that it says no more about what it follows itself."""
    if len(p.follows) > (0 if followed else MAX_FOLLOWED):
        raise RefusedError(
            f"A message was refused: a quorum follows {len(p.follows)} others, at most {MAX_FOLLOWED} are allowed, which "
            "name none."
        )
    if not 0 < len(p.members) <= MAX_MEMBERS:
        raise RefusedError(
            f"A message was refused: a quorum of {len(p.members)} members, 1 to {MAX_MEMBERS} are allowed."
        )
    if not followed:
        _check_told(p)
    return Quorum(
        id=check_whole(p.id, "quorum id"),
        config_id=check_whole(p.config_id, "config id"),
        number=check_whole(p.number, "quorum number"),
        members=tuple(member_from_proto(x) for x in p.members),
        created=check_seconds(p.created, "created"),
        granted_through=check_whole(p.granted_through, "granted_through"),
        lease=check_seconds(p.lease_s, "lease"),
        follows=tuple(quorum_from_proto(x, followed=True) for x in p.follows),
        since=check_whole(p.since, "since"),
    )


def _check_told(p: pb.Quorum) -> None:
    """All that is told of a quorum, together: each limit alone would let through what takes seconds to read."""
    quorums = (p, *p.follows)
    told = sum(len(q.members) for q in quorums)
    values = sum(len(m.handles) + len(m.carried) for q in quorums for m in q.members) if told <= MAX_TOLD else 0
    for count, what, limit in ((told, "members", MAX_TOLD), (values, "handles and carried quorums", MAX_TOLD_VALUES)):
        if count > limit:
            raise RefusedError(
                f"A message was refused: a quorum and those it follows have {count} {what}, at most {limit} are allowed."
            )


def hello_to_proto(v: lm.Hello, group_id: str, place: int = 0) -> pb.Hello:
    """`place`: of the lighthouse it goes to, see torchft_x.proto."""
    return pb.Hello(
        replica_id=v.replica_id,
        group_id=group_id,
        life=life_to_proto(v.life),
        address=v.address,
        state=state_to_proto(v.state),
        quorum=quorum_to_proto(v.quorum) if v.quorum is not None else None,
        granted_through=v.granted_through,
        lease_left_s=v.lease_left,
        boot_id=v.boot_id,
        library=v.library,
        wire=grpc_options.WIRE,
        runs_on=v.runs_on,
        chain=v.chain,
        before=quorum_to_proto(v.before) if v.before is not None else None,
        place=place,
    )


def hello_from_proto(session: int, p: pb.Hello) -> lm.Hello:
    return lm.Hello(
        session=session,
        replica_id=check_replica_id(p.replica_id),
        life=life_from_proto(p.life),
        address=check_plain(p.address, "address"),
        state=state_from_proto(p.state),
        quorum=quorum_from_proto(p.quorum) if p.HasField("quorum") else None,
        granted_through=check_whole(p.granted_through, "granted_through"),
        lease_left=check_seconds(p.lease_left_s, "lease_left"),
        boot_id=check_text(p.boot_id, "boot id", 128),
        library=check_plain(p.library, "library", 128),
        runs_on=p.runs_on,
        chain=check_text(p.chain, "chain", 128),
        before=quorum_from_proto(p.before) if p.HasField("before") else None,
    )


def word_to_proto(v: lm.LastWord) -> pb.LastWord:
    quorum = quorum_to_proto(v.quorum) if v.quorum is not None else None
    return pb.LastWord(replica_id=v.replica_id, quorum=quorum, chain=v.chain)


def word_from_proto(p: pb.LastWord) -> lm.LastWord:
    quorum = quorum_from_proto(p.quorum) if p.HasField("quorum") else None
    return lm.LastWord(check_replica_id(p.replica_id), quorum, check_text(p.chain, "chain", 128))


def up_to_event(session: int, up: pb.Up) -> lm.LighthouseEvent:
    """What a session says after its hello, as an event of the lighthouse."""
    kind = up.WhichOneof("kind")
    if kind == "join":
        return _join_from_proto(session, up.join)
    if kind == "progress":
        p = up.progress
        return lm.Progress(
            session,
            check_whole(p.quorum_id, "quorum id"),
            check_whole(p.step, "step"),
            check_whole(p.number, "number"),
            check_seconds(p.step_seconds, "step_seconds"),
        )
    if kind == "leave":
        lingers = check_text(up.leave.lingers, "lingers")
        return lm.Leave(session, state_from_proto(up.leave.state), up.leave.early, lingers)
    if kind == "healed":
        return lm.Healed(session, check_whole(up.healed.step, "step"))
    if kind == "ping":
        return lm.Heard(session)
    if kind == "pause":
        return lm.Paused(session, check_seconds(up.pause.seconds, "pause"), check_said(up.pause.reason, "reason", 200))
    if kind == "suspects":
        return lm.Suspected(session, check_texts(up.suspects.replica_ids, "suspects", MAX_MEMBERS))
    raise RefusedError(
        "A session sends one hello, then join, progress, leave, healed, pause, suspects and ping; something else came."
    )


def _join_from_proto(session: int, p: pb.Join) -> lm.Join:
    return lm.Join(
        session=session,
        member=member_from_proto(p.member),
        reason=check_reason(p.reason),
        suspects=check_texts(p.suspects, "suspects", MAX_MEMBERS),
        traits=fingerprint.from_proto(p.member.traits) if p.member.HasField("traits") else None,
        number=check_whole(p.number, "number"),
        step_seconds=check_seconds(p.step_seconds, "step_seconds"),
        patience=patience_from(p.patience_s),
    )


def patience_from(seconds: float) -> float:
    """How long somebody waits for members that do not ask, from the wire; 0: for ever."""
    return check_seconds(seconds, "patience_s") or math.inf


def patience_to(seconds: float) -> float:
    return 0.0 if seconds == math.inf else seconds


def join_bytes(effect: gm.SendJoin) -> bytes:
    join = pb.Join(
        member=member_to_proto(effect.member),
        reason=effect.reason.value,
        suspects=effect.suspects,
        number=effect.number,
        step_seconds=effect.step_seconds,
        patience_s=patience_to(effect.patience),
    )
    if effect.traits is not None:  # only here: in a quorum they would come back to everybody at every step
        join.member.traits.CopyFrom(fingerprint.to_proto(effect.traits))
    return pb.Up(join=join).SerializeToString()


def progress_bytes(effect: gm.SendProgress) -> bytes:
    progress = pb.Progress(
        quorum_id=effect.quorum_id, step=effect.step, number=effect.number, step_seconds=effect.step_seconds
    )
    return pb.Up(progress=progress).SerializeToString()


def leave_bytes(effect: gm.SendLeave) -> bytes:
    leave = pb.Leave(state=state_to_proto(effect.state), early=effect.early, lingers=effect.lingers)
    return pb.Up(leave=leave).SerializeToString()


def quorum_bytes(quorum: Quorum) -> bytes:
    """A whole `Down` message; made once per quorum, whatever the number of members."""
    return QuorumEncoder().encode(quorum)


class QuorumEncoder:
    """Makes the `Down` message of a quorum out of what its members are, each made into bytes while it waits for the others.

    Messages of protobuf are merged by joining their bytes.
    """

    def __init__(self) -> None:
        self._prepared: dict[str, tuple[Member, bytes]] = {}  # by replica id: who waits

    def prepare(self, member: Member) -> None:
        """It has asked; a quorum may come that has it as it is."""
        if len(self._prepared) < MAX_MEMBERS:
            self._prepared[member.replica_id] = (member, _member_bytes(member))

    def encode(self, quorum: Quorum) -> bytes:
        """Whoever waits for another one after this has to be prepared again."""
        prepared, self._prepared = self._prepared, {}
        parts = [quorum_to_proto(quorum, members=False).SerializeToString()]
        for member in quorum.members:
            known, data = prepared.get(member.replica_id, (None, b""))
            parts.append(data if known is member else _member_bytes(member))
        return _field(_DOWN_QUORUM, b"".join(parts))


def _member_bytes(member: Member) -> bytes:
    """As an entry of the list in a `Quorum`."""
    return _field(_QUORUM_MEMBERS, member_to_proto(member).SerializeToString())


def _field(number: int, data: bytes) -> bytes:
    """A field of protobuf that holds a message."""
    length, head = len(data), bytearray((number << 3 | 2,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


_DOWN_QUORUM: int = pb.Down.DESCRIPTOR.fields_by_name["quorum"].number
_QUORUM_MEMBERS: int = pb.Quorum.DESCRIPTOR.fields_by_name["members"].number


def waits_bytes(effect: lm.SendWaits) -> bytes:
    waits = pb.Waits(reason=effect.reason[:MAX_TEXT], lease=effect.lease, elsewhere=effect.elsewhere)
    return pb.Down(waits=waits).SerializeToString()


def patience_bytes(effect: lm.SendPatience) -> bytes:
    patience = pb.Patience(seconds=effect.seconds, reason=effect.reason)
    return pb.Down(patience=patience).SerializeToString()


def patience_from_proto(p: pb.Patience) -> tuple[float, str]:
    """Seconds and reason."""
    return check_seconds(p.seconds, "patience"), check_said(p.reason, "reason")


def pause_bytes(seconds: float, reason: str) -> bytes:
    return pb.Up(pause=pb.Pause(seconds=seconds, reason=reason)).SerializeToString()


def suspects_bytes(replica_ids: tuple[str, ...]) -> bytes:
    return pb.Up(suspects=pb.Suspects(replica_ids=replica_ids)).SerializeToString()


def grant_bytes(effect: lm.Extend) -> bytes:
    """A whole `Down` message."""
    grant = pb.Grant(
        quorum_id=effect.quorum_id,
        granted_through=effect.granted_through,
        lease_s=effect.lease,
        number=effect.number,
    )
    return pb.Down(grant=grant).SerializeToString()


def over_to_proto(effect: lm.SendOver | gm.PushOver) -> pb.Over:
    return pb.Over(quorum_id=effect.quorum_id, lost=effect.lost, reason=effect.reason, left=effect.left)


def over_from_proto(p: pb.Over) -> gm.OverArrived:
    lost = tuple(map(clean, check_texts(p.lost, "lost", MAX_MEMBERS)))
    return gm.OverArrived(check_whole(p.quorum_id, "quorum id"), lost, check_said(p.reason, "reason"), p.left)


def down_to_event(down: pb.Down) -> gm.GroupEvent | None:
    """What a lighthouse says after its welcome, as an event of the group; None for a pong."""
    kind = down.WhichOneof("kind")
    if kind == "quorum":
        return gm.QuorumArrived(quorum_from_proto(down.quorum))
    if kind == "grant":
        p = down.grant
        return gm.GrantArrived(
            check_whole(p.quorum_id, "quorum id"),
            check_whole(p.granted_through, "granted_through"),
            check_seconds(p.lease_s, "lease"),
            check_whole(p.number, "number"),
        )
    if kind == "over":
        return over_from_proto(down.over)
    if kind == "fenced":
        return gm.FencedArrived(check_said(down.fenced.by, "fenced by"))
    if kind == "refused":
        return gm.RefusedArrived(check_said(down.refused.sentence, "sentence"))
    if kind == "waits":
        return gm.WaitsArrived(check_said(down.waits.reason, "reason"), down.waits.lease)
    return None


# --- the peer's lighthouse wire --------------------------------------------------------------------------------------


def peer_member_to_proto(v: Member) -> peer_pb.QuorumMember:
    return peer_pb.QuorumMember(
        replica_id=v.replica_id,
        address=v.address,
        store_address=v.store_address,
        step=v.state.step,
        world_size=v.world_size,
        shrink_only=v.shrink_only,
        data=v.data,
        commit_failures=v.commit_failures,
        reconfigure_handles=v.handles,
    )


def peer_member_from_proto(p: peer_pb.QuorumMember) -> Member:
    return Member(
        replica_id=check_replica_id(p.replica_id),
        address=check_plain(p.address, "address"),
        store_address=check_text(p.store_address, "store address"),
        state=State(check_whole(p.step, "step")),
        world_size=check_whole(p.world_size, "world size", MAX_RANKS),
        shrink_only=p.shrink_only,
        commit_failures=check_whole(p.commit_failures, "commit_failures"),
        data=check_text(p.data, "data", MAX_DATA),
        handles=check_texts(p.reconfigure_handles, "handles", MAX_RANKS),
    )


def peer_quorum_bytes(quorum: Quorum) -> bytes:
    """A whole LighthouseQuorumResponse. Their `quorum_id` changes only when members change or failed: our config id."""
    reply = peer_pb.LighthouseQuorumResponse()
    reply.quorum.quorum_id = quorum.config_id
    reply.quorum.participants.extend(peer_member_to_proto(x) for x in quorum.members)
    reply.quorum.created.FromNanoseconds(int(quorum.created * 1e9))
    return bytes(reply.SerializeToString())
